#include "run/local_copies.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <sstream>

#include "base/disk_space.h"
#include "base/file.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/needed_files.h"
#include "comm/gloo/gloo_transport.h"
#include "run/reporter.h"
#include "storage/folder_lease.h"
#include "storage/free_space.h"

namespace mtrain::run {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLocalRun = "local.txt";
// The checkpoint that a start reads is made in this folder.
constexpr const char* kStartFolder = ".start";
// How long a host asks another one for a file, which may be busy with those of other hosts.
constexpr std::chrono::seconds kFetchRetry{30};

std::string new_digits() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  return fmt::format("{:016x}", uint64_t(us));
}

// Names of runs become names of folders.
std::string folder_name(const fs::path& run_dir) {
  std::string name = run_dir.lexically_normal().filename().string().substr(0, 64);
  for (char& c : name)
    if (!comm::is_exchanged_name(std::string("x") + c)) c = '_';
  return name.empty() || name[0] == '.' ? "run" + name : name;
}

std::string count_text(int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

}  // namespace

LocalRun local_run(const fs::path& run_dir, bool continues) {
  LocalRun run{.name = folder_name(run_dir) + "-" + new_digits(), .replaced = ""};
  std::error_code error;
  if (!fs::is_regular_file(run_dir / kLocalRun, error)) return run;
  const std::string known(trim(read_file(run_dir / kLocalRun)));
  if (!comm::is_exchanged_name(known)) return run;
  if (continues)
    run.name = known;
  else
    run.replaced = known;
  return run;
}

void write_local_run(const fs::path& run_dir, const LocalRun& run) {
  write_file_atomic(run_dir / kLocalRun, run.name + "\n");
}

void remove_local_run(const fs::path& run_dir) {
  std::error_code error;
  fs::remove(run_dir / kLocalRun, error);
}

namespace {

// Reads the descriptions that a host has sent.
void read_descriptions(const std::string& text, std::vector<storage::PartDescription>& parts) {
  const std::vector<std::string> lines = split(text, '\n');
  for (size_t i = 0; i + 1 < lines.size(); i += 2) {
    auto part = storage::PartDescription::parse(lines[i] + "\n" + lines[i + 1] + "\n",
                                                "a description of a part");
    parts.at(size_t(part.name.rank)) = std::move(part);
  }
}

}  // namespace

LocalCopies::LocalCopies(train::Trainer& trainer, std::shared_ptr<Pulse> pulse, bool continues)
    : trainer_(trainer),
      pulse_(std::move(pulse)),
      control_(trainer.control()),
      options_(trainer.plan().checkpoint.local) {
  find_hosts();
  // Rank 0 names the copies, and the start.
  std::string own;
  if (control_.rank() == 0) {
    run_ = local_run(trainer.plan().folders.run_dir, continues);
    own = fmt::format("{}\n{}\n{}", run_.name, run_.replaced, new_digits());
  }
  const std::vector<std::string> named = split(control_.texts(own)[0], '\n');
  MT_CHECK(named.size() == 3, "{} lines", named.size());
  run_ = {.name = named[0], .replaced = named[1]};
  start_ = named[2];
  make_folder();
  if (on() && first_of_.size() > 1) open_server();
}

LocalCopies::~LocalCopies() {
  saver_.reset();  // its thread uses the folder
  if (folder_ && is_first()) remove_start_folder();
}

void LocalCopies::remove_start_folder() const {
  std::error_code error;
  fs::remove_all(folder_->path() / kStartFolder, error);
}

void LocalCopies::find_hosts() {
  host_names_ = control_.texts(host_name());
  for (size_t rank = 0; rank < host_names_.size(); ++rank) {
    const auto first = std::ranges::find(host_names_, host_names_[rank]) - host_names_.begin();
    if (size_t(first) == rank) first_of_.push_back(int(rank));
    if (int(rank) == control_.rank())
      host_ = int(std::ranges::find(first_of_, int(first)) - first_of_.begin());
  }
}

void LocalCopies::make_folder() {
  std::string own;
  try {
    folder_.emplace(options_.dir, host_name(), run_.name);
  } catch (const std::exception& e) {
    own = fmt::format("{}: {}", host_name(), e.what());
  }
  if (!control_.any(!own.empty())) return;
  folder_.reset();  // on all ranks
  for (const std::string& error : control_.texts(own))
    if (!error.empty()) return turn_off(error);
}

void LocalCopies::open_server() {
  std::string own, error;
  std::optional<comm::JobAccess> access;
  try {
    access = trainer_.world().access();
    MT_CHECK(access, "ranks without addresses");
    own = access->own + " " + access->server;
  } catch (const Error& e) {
    error = fmt::format("{}: {}", host_name(), e.message());
  }
  std::vector<comm::StorePath> paths;
  for (const std::string& text : control_.texts(std::exchange(own, {}))) {
    comm::StorePath path;
    std::istringstream(text) >> path.own >> path.server;
    paths.push_back(path);
  }
  if (access) try {
      socket_.token = access->token;
      const std::string address = comm::gloo_address(paths, control_.rank());
      server_ = std::make_unique<comm::FileServer>(comm::FileServer::Options{
          .address = address,
          .socket = socket_,
          .root = folder_->path(),
          .admit = [this](int64_t bytes) { storage::require_space(folder_->path(), bytes); }});
      own = fmt::format("{} {}", address, server_->port());
    } catch (const Error& e) {
      error = fmt::format("{}: {}", host_name(), e.message());
    }
  const std::vector<std::string> errors = control_.texts(error), all = control_.texts(own);
  for (const std::string& e : errors)
    if (!e.empty()) return turn_off(e);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    checkpoint::LocalPeer peer{.host = host_names_[rank], .address = {}};
    std::istringstream(all[rank]) >> peer.address >> peer.port;
    peers_.push_back(peer);
  }
}

std::string LocalCopies::on_hosts(const std::function<void()>& work) {
  try {
    checkpoint::all_together(control_, [&](checkpoint::Meetings& meetings) {
      if (is_first()) meetings.run(work);
    });
    return "";
  } catch (const checkpoint::SaveError& e) {
    return e.message();
  }
}

std::vector<storage::LocalPart> LocalCopies::sound_parts() const {
  std::vector<storage::LocalPart> parts = storage::list_parts(folder_->path());
  std::erase_if(parts, [&](const storage::LocalPart& p) {
    return damaged_.contains(p.description.name.text());
  });
  return parts;
}

void LocalCopies::improve(ChosenStart& start) {
  if (auto copy = find_start(start.saved_step())) start.set_local(*std::move(copy), options_.dir);
}

void LocalCopies::leave(ChosenStart& start, const storage::DamagedCheckpoint& damage) {
  // A copy that is damaged twice, although all of its bytes are right when they are read between
  // the two, is not tried again.
  if (left_ == from_) distrust(from_);
  left_ = std::exchange(from_, {});
  start.leave_local();
  if (auto copy = find_start(start.saved_step())) {
    start.set_local(*std::move(copy), options_.dir);
    if (control_.rank() == 0)
      log::warn(fmt::format("{}; the copy of step {} is read", damage.message(), from_.first));
  } else if (start.saved()) {
    if (control_.rank() == 0)
      log::warn(fmt::format("{}; the run continues from {} instead of the local copies",
                            damage.message(), start.text()));
  } else {
    distrust(left_);
    remove_damaged();  // the next start would choose it again
    throw damage;
  }
}

// Counts all parts of a copy as damaged.
void LocalCopies::distrust(const CopyId& copy) {
  if (!is_first()) return;
  for (const storage::LocalPart& p : storage::list_parts(folder_->path()))
    if (CopyId(p.description.name.step, p.description.name.start) == copy)
      damaged_.insert(p.description.name.text());
}

std::optional<storage::CheckpointRef> LocalCopies::find_start(int64_t after) {
  if (!on()) return std::nullopt;
  std::set<CopyId> refused;
  for (;;) {
    std::vector<HostPart> own;
    if (is_first())
      for (const storage::LocalPart& p : sound_parts())
        own.push_back({p.description.name, p.description.ranks});
    const std::vector<std::string> all = control_.texts(host_parts_text(own));
    std::vector<std::vector<HostPart>> hosts;
    for (const int first : first_of_) hosts.push_back(parse_host_parts(all[size_t(first)]));
    const auto choice = newest_copy(hosts, after, refused);
    if (!choice) return std::nullopt;
    try {
      if (find_damage(*choice)) continue;
      return assemble(*choice);
    } catch (const checkpoint::SaveError& e) {  // on all ranks
      refused.insert(choice->id);
      if (control_.rank() == 0)
        log::warn(fmt::format("the local copy of step {} is not used: {}", choice->id.first,
                              e.message()));
    }
  }
}

std::vector<storage::LocalPart> LocalCopies::provided(const LocalChoice& choice) const {
  std::vector<storage::LocalPart> parts = sound_parts();
  std::erase_if(parts, [&](const storage::LocalPart& p) {
    const storage::PartName& name = p.description.name;
    const auto rank = size_t(name.rank);
    return CopyId(name.step, name.start) != choice.id || rank >= choice.host_of.size() ||
           choice.host_of[rank] != host_;
  });
  return parts;
}

// Reads this host's parts of the copy, which its ranks use even if another host provides them.
// Returns whether one is damaged on any host: it is not used again. Throws SaveError on all ranks
// if a host cannot read.
bool LocalCopies::find_damage(const LocalChoice& choice) {
  std::vector<storage::LocalPart> bad;
  const std::string error = on_hosts([&] {
    std::vector<storage::LocalPart> parts = sound_parts();
    std::erase_if(parts, [&](const storage::LocalPart& p) {
      return CopyId(p.description.name.step, p.description.name.start) != choice.id;
    });
    std::vector<std::future<bool>> checks;
    for (const storage::LocalPart& p : parts)
      checks.push_back(std::async(std::launch::async, storage::is_sound_part, p));
    for (size_t i = 0; i < parts.size(); ++i)
      if (!checks[i].get()) bad.push_back(std::move(parts[i]));
  });
  if (!error.empty()) throw checkpoint::SaveError(error);
  for (const storage::LocalPart& p : bad) {
    log::warn(
        fmt::format("{} is damaged, and is not used; another copy is tried", p.folder.string()));
    damaged_.insert(p.description.name.text());
  }
  return control_.any(!bad.empty());
}

void LocalCopies::remove_damaged() const {
  for (const std::string& name : damaged_) storage::remove_part(folder_->path() / name);
}

storage::CheckpointRef LocalCopies::assemble(const LocalChoice& choice) {
  // Each host sends the descriptions of the parts that it provides, which have two lines each.
  std::string own;
  if (is_first())
    for (const storage::LocalPart& p : provided(choice)) own += p.description.text();
  const std::vector<std::string> all = control_.texts(own);
  std::vector<storage::PartDescription> parts(choice.host_of.size());
  checkpoint::PartsIndex index;
  std::string error, needed;
  try {
    for (const std::string& of_host : all) read_descriptions(of_host, parts);
    std::vector<std::string> shards;
    for (const storage::PartDescription& p : parts) shards.push_back(p.shards);
    index = checkpoint::index_of_parts(shards);
    for (const bool file : needed_files(trainer_.checkpoint_parts(), index.index))
      needed += file ? '1' : '0';
  } catch (const std::exception& e) {  // the same on all ranks
    error = e.what();
  }
  const std::vector<std::string> needs = control_.texts(needed);
  if (!error.empty()) throw checkpoint::SaveError(error);
  // The files that ranks of this host read.
  std::set<std::string> read;
  for (size_t rank = 0; rank < needs.size(); ++rank)
    for (size_t file = 0; file < needs[rank].size(); ++file)
      if (host_names_[rank] == host_name() && needs[rank][file] == '1')
        read.insert(index.index.files[file]);
  const fs::path folder = folder_->path() / kStartFolder / storage::step_name(choice.id.first);
  error = on_hosts([&] {
    gather_files(choice, parts, read, folder);
    checkpoint::write_parts_index(folder, choice.id.first, index);
    if (!storage::complete_checkpoint(folder))
      throw RunError(fmt::format("{} is not a checkpoint", folder.string()));
  });
  if (!error.empty()) throw checkpoint::SaveError(error);
  from_ = choice.id;
  return {folder, choice.id.first};
}

// Links the files that this host has, and gets those that its ranks read from other hosts. Files
// that no rank of this host reads are holes of their sizes, which take no memory.
void LocalCopies::gather_files(const LocalChoice& choice,
                               const std::vector<storage::PartDescription>& parts,
                               const std::set<std::string>& read, const fs::path& folder) {
  fs::remove_all(folder.parent_path());
  fs::create_directories(folder);
  std::set<std::string> sound;
  for (const storage::LocalPart& p : sound_parts()) sound.insert(p.description.name.text());
  std::optional<comm::FileClient> client;
  int connected = -1;  // the host of `client`
  for (const int rank : fetch_order(choice.host_of, host_, int(first_of_.size()))) {
    const storage::PartDescription& part = parts[size_t(rank)];
    const std::string name = part.name.text();
    const fs::path own = folder_->path() / name;
    const bool here = sound.contains(name);
    for (const auto& [file, bytes] : part.sizes) {
      if (here) {
        fs::create_hard_link(own / file, folder / file);
        continue;
      }
      if (part.sizes.contains(file + ".sums") && !read.contains(file)) {
        std::ofstream(folder / file).close();
        fs::resize_file(folder / file, uintmax_t(bytes));
        continue;
      }
      const int host = choice.host_of[size_t(rank)];
      const checkpoint::LocalPeer& from = peers_.at(size_t(first_of_[size_t(host)]));
      try {
        if (host != connected) client.emplace(from.address, from.port, socket_, kFetchRetry);
        connected = host;
        client->fetch(name, file, folder / file);
      } catch (const CommError& e) {
        throw RunError(fmt::format("{} of {}: {}", name, from.host, e.message()));
      }
    }
  }
}

void LocalCopies::accept_start() {
  if (!folder_) return;
  control_.any(false);  // all ranks have accepted the start, and nobody reads it any more
  if (is_first()) {
    remove_damaged();
    // Only the copy of the start may be needed again.
    for (const storage::LocalPart& p : storage::list_parts(folder_->path()))
      if (CopyId(p.description.name.step, p.description.name.start) != from_)
        storage::remove_part(p.folder);
    folder_->remove_temporaries();  // also the checkpoint of the start
    std::error_code error;
    if (!run_.replaced.empty() && run_.replaced != run_.name)
      fs::remove_all(folder_->path().parent_path() / run_.replaced, error);
    folder_->remove_leftovers(storage::kLeaseStale);
  }
  control_.any(false);  // before the first copy, whose files are temporary at first
}

void LocalCopies::record() const {
  const fs::path& run_dir = trainer_.plan().folders.run_dir;
  if (on())
    write_local_run(run_dir, run_);
  else
    remove_local_run(run_dir);
}

std::vector<LocalNeed> LocalCopies::needs(const checkpoint::CheckpointParts& parts) const {
  const fs::path& folder = folder_->path();
  const bool in_memory = storage::is_in_memory(folder);
  int64_t memory = available_host_memory(), room = free_disk_bytes(folder);
  const int64_t replaced = folder_->bytes();  // the copies that this host has
  if (in_memory && memory >= 0) memory += replaced;
  if (room >= 0) room += replaced;
  const std::vector<std::string> all =
      control_.texts(fmt::format("{} {} {} {} {}", checkpoint::shard_bytes(parts),
                                 checkpoint::snapshot_bytes(parts), int(in_memory), memory, room));
  std::vector<RankNeed> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    RankNeed& r = ranks.emplace_back(RankNeed{.host = host_names_[rank]});
    int of_memory = 0;
    std::istringstream(all[rank]) >> r.part >> r.staged >> of_memory >> r.memory >> r.room;
    r.in_memory = of_memory != 0;
  }
  return needs_of_hosts(ranks, options_.replicas);
}

std::string LocalCopies::prepare(Reporter* reporter) {
  reporter_ = reporter;
  if (!on()) return "off: " + off_;
  const checkpoint::CheckpointParts parts = trainer_.checkpoint_parts();
  const std::vector<LocalNeed> hosts = needs(parts);
  if (const std::string why = refusal(hosts, options_.max_bytes); !why.empty()) {
    turn_off(why);
    return "off: " + why;
  }
  const auto replicas = replica_ranks(host_names_, options_.replicas)[size_t(control_.rank())];
  checkpoint::LocalSaver::Options of_saver{
      .folder = folder_->path(), .start = start_, .first_of_host = is_first(), .socket = socket_};
  of_saver.wrote = [pulse = pulse_] { pulse->wrote(); };
  for (const int to : replicas) of_saver.peers.push_back(peers_.at(size_t(to)));
  const auto ranks_here = std::ranges::count(host_names_, host_name());
  of_saver.bytes_per_s = options_.replica_bytes_per_s / double(ranks_here);
  std::string error;
  try {
    saver_.emplace(trainer_.device(), parts, std::move(of_saver));
  } catch (const RunError& e) {
    error = fmt::format("{}: {}", host_name(), e.message());
  }
  for (const std::string& e : control_.texts(error))
    if (!e.empty()) {
      saver_.reset();
      turn_off(e);
      return "off: " + e;
    }
  const auto most = std::ranges::max_element(hosts, {}, [](const auto& h) { return h.bytes(); });
  std::string text = fmt::format(
      "every {} in {}, up to {} on a host, and {} of its memory for what is copied",
      options_.every_steps == 1 ? "step" : count_text(options_.every_steps, "step"), options_.dir,
      human_bytes(double(most->parts)), human_bytes(double(most->staged)));
  if (options_.replicas > 0)
    text += fmt::format(", {} on other hosts", count_text(int64_t(replicas.size()), "replica"));
  if (options_.replicas > int(replicas.size()))
    text += fmt::format(" (the job has {})", count_text(int64_t(first_of_.size()), "host"));
  return text;
}

void LocalCopies::save(const RunSave& save, std::shared_ptr<const checkpoint::Snapshot> staged) {
  if (!saver_) return;
  const auto began = std::chrono::steady_clock::now();
  finish();
  const int64_t bytes = staged ? 0 : saver_->staged_bytes();
  begin_local(trainer_, save, *saver_, std::move(staged));
  if (!reporter_) return;
  reporter_->staged_locally(bytes);
  reporter_->stalled(std::chrono::steady_clock::now() - began);
}

void LocalCopies::release_staged() {
  if (saver_ && saver_->reads_staged()) finish();
}

void LocalCopies::finish() {
  const checkpoint::LocalSaver::Outcome outcome = saver_->finish();
  const std::string& what = outcome.error.empty() ? outcome.not_sent : outcome.error;
  if (what.empty()) return;
  ++failures_;
  if (!reporter_) return;
  reporter_->local_copies_failed(failures_);
  if (failures_ == 1)
    log::warn(
        fmt::format("a local copy {}: {}; training continues, and later failures are only "
                    "counted (checkpoint.local_failures)",
                    outcome.error.empty() ? "has no replica" : "is not complete", what));
}

void LocalCopies::end(bool saved) {
  if (saver_) finish();
  saver_.reset();
  control_.any(false);  // all ranks have written
  if (saved && folder_ && is_first()) folder_->remove_all();
}

void LocalCopies::turn_off(const std::string& reason) {
  off_ = reason;
  if (control_.rank() == 0)
    log::warn(fmt::format("no local copies are made: {}; training continues", reason));
}

}  // namespace mtrain::run
