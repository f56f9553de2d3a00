#include "checkpoint/local_saver.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/file.h"
#include "checkpoint/ranks_together.h"
#include "storage/free_space.h"
#include "storage/local_part.h"

namespace mtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

struct LocalGivenUp {};  // ends the thread of a copy that is given up

// Returns the text of the first rank that has one, with its number and host.
std::string first_text(const comm::HostCollectives& control, const std::string& own) {
  const std::string named = own.empty() ? "" : fmt::format("{}: {}", host_name(), own);
  const std::vector<std::string> all = control.texts(named);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) return fmt::format("rank {} on {}", rank, all[rank]);
  return "";
}

}  // namespace

LocalSaver::LocalSaver(Device& device, const CheckpointParts& t, Options options)
    : control_(t.control),
      options_(std::move(options)),
      rank_(t.control.rank()),
      own_bytes_(shard_bytes(t)),
      own_(std::make_shared<Snapshot>(device)) {
  own_->reserve(snapshot_bytes(t));
}

LocalSaver::~LocalSaver() {
  give_up_ = true;
  if (pending_.valid()) pending_.wait();
}

LocalSaver::Outcome LocalSaver::finish() {
  if (!writing_) return {};
  // Ranks need different times, which may be longer than comm.timeout_s.
  constexpr std::chrono::milliseconds kHeartbeat{20};
  for (int64_t before = 0;;) {
    const bool waits = pending_.wait_for(kHeartbeat) != std::future_status::ready;
    const int64_t parts = parts_;
    const auto any = control_.any_of({waits, parts != std::exchange(before, parts)});
    if (!any[0]) break;
    // A rank that has written and sent its part waits for others.
    if (any[1] && options_.wrote) options_.wrote();
  }
  const Result own = pending_.get();
  writing_ = false;
  from_ = nullptr;
  if (own.failure) std::rethrow_exception(own.failure);
  Outcome outcome;
  const std::vector<bool> failed = control_.any_of({!own.error.empty(), !own.not_sent.empty()});
  if (failed[0]) outcome.error = first_text(control_, own.error);
  if (failed[1]) outcome.not_sent = first_text(control_, own.not_sent);
  outcome.written = !failed[0];
  if (outcome.written) complete_ = step_;
  if (outcome.written && !failed[1]) replicated_ = step_;
  return outcome;
}

Event LocalSaver::begin(const CheckpointParts& t, const TrainProgress& progress,
                        SaveOptions options, std::shared_ptr<const Snapshot> staged) {
  MT_CHECK(!writing_, "another copy is being written");
  const Event copied = staged ? staged->copied() : own_->stage(t);
  from_ = staged ? std::move(staged) : own_;
  Work work{.step = progress.steps_done,
            .complete = complete_,
            .replicated = replicated_,
            .io_threads = t.io_threads,
            .state = saved_state(t, progress),
            .options = std::move(options)};
  step_ = work.step;
  writing_ = true;
  pending_ = std::async(std::launch::async, [this, work = std::move(work)] { return run(work); });
  return copied;
}

LocalSaver::Result LocalSaver::run(const Work& work) {
  Result result;
  try {
    write(work, result);
  } catch (const LocalGivenUp&) {
    result.failure = std::make_exception_ptr(BugError("the copy was given up"));
  } catch (...) {
    result.failure = std::current_exception();
  }
  return result;
}

void LocalSaver::write(const Work& work, Result& result) {
  from_->wait();
  fs::path part;
  try {
    with_save_errors([&] { part = write_part(work); });
  } catch (const SaveError& e) {
    result.error = e.message();
    return;
  }
  for (const LocalPeer& peer : options_.peers) try {
      send(part, peer);
    } catch (const Error& e) {
      not_sent(result, peer, e.message());
    } catch (const fs::filesystem_error& e) {  // the part is gone
      not_sent(result, peer, e.what());
    }
}

void LocalSaver::not_sent(Result& result, const LocalPeer& peer, const std::string& why) const {
  go_on();
  if (result.not_sent.empty())
    result.not_sent = fmt::format("no replica on {}: {}", peer.host, why);
}

fs::path LocalSaver::write_part(const Work& work) {
  remove_old(work);
  if (options_.admit) options_.admit(own_bytes_);
  storage::require_space(options_.folder, own_bytes_);
  storage::PartWriter writer(options_.folder,
                             {.step = work.step, .start = options_.start, .rank = rank_});
  const std::vector<WrittenShard> shards = write_shards(
      *from_, rank_, writer.folder(), work.io_threads, [&](int64_t, int64_t) { go_on(); });
  if (rank_ == 0) write_state(work.state, work.options, writer.folder());
  return writer.commit(int(work.state.ranks), shards_text(shards));
}

// Removes the parts of this start but those of three steps: the newest complete one, the newest of
// which all replicas exist, too, and the one that is to be written. If a host is lost, only the
// second one can be read. Parts of earlier starts go once this start has such a step.
void LocalSaver::remove_old(const Work& work) const {
  std::error_code error;
  std::vector<fs::path> old;
  for (fs::directory_iterator it(options_.folder, error), end; !error && it != end;
       it.increment(error)) {
    const auto name = storage::parse_part_name(it->path().filename().string());
    if (!name || (name->rank != rank_ && !options_.first_of_host)) continue;
    const bool kept = name->start != options_.start
                          ? work.replicated == 0
                          : name->step == work.step || name->step == work.complete ||
                                name->step == work.replicated;
    if (!kept) old.push_back(it->path());
  }
  for (const fs::path& part : old) storage::remove_part(part);
}

void LocalSaver::send(const fs::path& part, const LocalPeer& peer) {
  comm::ProvenSocket::Options socket = options_.socket;
  socket.stop = &give_up_;
  constexpr std::chrono::seconds kRetry{2};
  comm::FileClient client(peer.address, peer.port, socket, kRetry);
  comm::RateLimit limit(options_.bytes_per_s);
  client.send_folder(part, limit, [this] { go_on(); });
}

void LocalSaver::go_on() const {
  if (give_up_) throw LocalGivenUp();
  ++parts_;
  if (options_.wrote) options_.wrote();
}

PartsIndex index_of_parts(const std::vector<std::string>& shards) {
  PartsIndex parts;
  for (const std::string& text : shards) add_shards(parse_shards(text), parts.index, parts.sums);
  return parts;
}

void write_parts_index(const fs::path& folder, int64_t step, const PartsIndex& parts) {
  storage::write_index(folder, step, parts.index, parts.sums);
  const storage::Manifest manifest = storage::read_manifest(folder);
  storage::read_index(folder, manifest);  // checks that the pieces are the tensors
}

}  // namespace mtrain::checkpoint
