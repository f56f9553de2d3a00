#include "storage/checkpoint_dir.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strings.h"
#include "storage/damaged_checkpoint.h"
#include "storage/file_sums.h"
#include "storage/manifest.h"
#include "storage/new_folder.h"
#include "storage/read_mark.h"
#include "storage/state.h"

namespace mtrain::storage {
namespace fs = std::filesystem;

namespace {

constexpr const char *kLatest = "latest", *kBest = "best", *kState = "state.json";

const char* space_hint(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG
             ? "free some space or set checkpoint.dir elsewhere; earlier checkpoints are intact"
             : "check checkpoint.dir; earlier checkpoints are intact";
}
[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  throw RunError(fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(error)),
                 space_hint(error));
}

// Returns the folders of checkpoints, sound or not, by their steps. Throws if the system cannot
// list the folder: that must not look like an empty list.
std::vector<CheckpointRef> list_folders(const fs::path& root) {
  std::vector<CheckpointRef> found;
  std::error_code error;
  fs::directory_iterator it(root, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error))
    if (const int64_t step = parse_step(it->path().filename().string()); step >= 0)
      found.push_back({it->path(), step});
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw RunError(fmt::format("cannot list {}: {}", root.string(), error.message()),
                   "it may hold checkpoints: make it readable");
  std::ranges::sort(found, {}, &CheckpointRef::step);
  return found;
}

// Returns the target of a link: a run that moves the link later then has no effect. Returns other
// paths unchanged.
fs::path link_target(const fs::path& path) {
  std::error_code error;
  const fs::path name = path.has_filename() ? path : path.parent_path();  // it may end with a slash
  const fs::path target = fs::read_symlink(name, error);
  return error ? path : name.parent_path() / target;
}

// Checks that a listed file exists. A file that cannot be looked at is not a missing one.
void require_present(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) throw missing_file(file);
  if (error) throw RunError(fmt::format("cannot look at {}: {}", file.string(), error.message()));
  if (!fs::is_regular_file(status)) throw damaged_file(file, "it is not a regular file");
}

// Checks the files of a folder whose manifest is sound.
void check_files(const fs::path& folder, const Manifest& manifest) {
  std::error_code error;
  for (const auto& [name, bytes] : manifest.sizes) {
    if (name == kRecipeCopy) continue;
    const fs::path file = folder / name;
    require_no_link(folder, name);
    require_present(file);
    const auto size = fs::file_size(file, error);
    if (error) throw RunError(fmt::format("cannot look at {}: {}", file.string(), error.message()));
    if (int64_t(size) != bytes)
      throw damaged_file(file, fmt::format("it has {} bytes and was saved with {}", size, bytes));
    if (!manifest.has_sums) continue;
    const FileSums sums(file, checked_sums(folder, manifest, name));
    if (!name.ends_with(".safetensors")) sums.check_file();  // tensors are checked when read
  }
}

// Returns nothing for a folder that is not named as a checkpoint.
std::optional<int64_t> named_step(const fs::path& folder) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(folder, error);  // `folder` may end with a slash
  const int64_t step = parse_step(whole.filename().string());
  return step < 0 ? std::nullopt : std::optional(step);
}

void check_step(const fs::path& folder, const Manifest& manifest) {
  std::error_code error;
  const auto named = named_step(folder);
  if (named && *named != manifest.step)
    throw damaged_file(
        manifest_path(folder),
        fmt::format("it is of step {}, but its folder is of step {}", manifest.step, *named));
  if (!fs::exists(folder / kState, error)) return;  // imported weights of earlier versions
  read_saved(folder / kState);
  TrainState state;
  try {
    state = TrainState::load(folder / kState);
  } catch (const UserError& e) {
    throw damaged_file(folder / kState, e.message());
  }
  if (state.contains("step") && (state.integer("step") != manifest.step || manifest.step == 0))
    throw damaged_file(folder / kState,
                       fmt::format("its step is {}, but that of {} is {}", state.integer("step"),
                                   manifest_path(folder).filename().string(), manifest.step));
}

CheckpointRef check_checkpoint(const fs::path& folder) {
  const Manifest manifest = read_manifest(folder);
  check_files(folder, manifest);
  check_step(folder, manifest);
  return {folder, manifest.step};
}

bool is_sound(const fs::path& folder) {
  try {
    check_checkpoint(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Throws an error with hints how to continue if the newest checkpoint, the last of `all`, cannot be
// read.
[[noreturn]] void fail_newest(std::vector<CheckpointRef> all, const Error& error) {
  const fs::path damaged = all.back().path;
  all.pop_back();
  const auto sound = std::find_if(all.rbegin(), all.rend(),
                                  [](const CheckpointRef& ref) { return is_sound(ref.path); });
  const std::string then =
      sound == all.rend()
          ? "there is no undamaged one before it: to start from scratch, set another train.run_dir"
          : fmt::format("or continue from the newest undamaged one with checkpoint.load={}",
                        sound->path.string());
  const std::string message =
      fmt::format("the newest checkpoint {} cannot be read: {}", damaged.string(), error.message());
  const std::string hint =
      fmt::format("copy its files again from an intact source; {}. Nothing was changed", then);
  if (const auto* proven = dynamic_cast<const DamagedFile*>(&error))
    throw DamagedCheckpoint(damaged, *proven, message, hint);
  throw RunError(message, hint);
}

// Returns the name that the file `latest` holds; empty if there is no such file.
std::string read_latest(const fs::path& root) {
  std::error_code error;
  if (!fs::is_regular_file(root / kLatest, error)) return "";
  return std::string(trim(read_file(root / kLatest)));
}

void remove_or_warn(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) log::warn(fmt::format("cannot delete {}: {}", folder.string(), error.message()));
}

// Removes what killed saves have left.
void remove_stale_checkpoints(const fs::path& root, const SavingJob& job) {
  for (const auto& folder : stale_temporaries(root, job)) remove_or_warn(folder);
  for (const char* name : {kLatest, kBest}) remove_stale_temporaries(root / name);
}

// Returns the finite validation loss that a sound checkpoint holds.
std::optional<ScoredCheckpoint> scored_by_loss(const CheckpointRef& ref) {
  std::error_code error;
  if (!fs::exists(ref.path / kState, error)) return std::nullopt;
  const TrainState state = TrainState::load(ref.path / kState);
  if (!state.contains(kValidationLoss)) return std::nullopt;
  const std::string& text = state.text(kValidationLoss);
  double loss = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), loss);
  const bool number = wrong == std::errc() && end == text.data() + text.size();
  if (!number || !std::isfinite(loss)) return std::nullopt;
  const int64_t samples =
      state.contains(kValidationSamples) ? state.integer(kValidationSamples) : 0;
  return ScoredCheckpoint{ref, loss, samples};
}

// Keeps only losses over as many samples as that of the newest checkpoint that has a loss: other
// losses cannot be compared with it.
std::vector<ScoredCheckpoint> score(const std::vector<CheckpointRef>& sound) {
  std::vector<ScoredCheckpoint> scored;
  for (const CheckpointRef& ref : sound)
    if (auto loss = scored_by_loss(ref)) scored.push_back(*std::move(loss));
  if (scored.empty()) return scored;
  std::erase_if(scored, [samples = scored.back().samples](const ScoredCheckpoint& s) {
    return s.samples != samples;
  });
  std::ranges::stable_sort(scored, {}, &ScoredCheckpoint::loss);
  return scored;
}

// Returns the step of the checkpoint that `best` links to; nothing if it is not a link of mtrain.
std::optional<int64_t> linked_step(const fs::path& root) {
  std::error_code error;
  const fs::path target = fs::read_symlink(root / kBest, error);
  const int64_t step = error ? -1 : parse_step(target.string());
  return step < 0 ? std::nullopt : std::optional(step);
}

// Makes or replaces a link atomically. If the process is killed, remove_stale_temporaries() removes
// its temporary later. Throws RunError.
void link_atomic(const fs::path& link, const std::string& target) {
  const std::string temporary =
      fmt::format("{}.tmp.{}.0.{}", link.string(), ::getpid(), host_name());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0 ||
      ::rename(temporary.c_str(), link.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw RunError(fmt::format("cannot make the link {}: {}", link.string(), std::strerror(error)));
  }
  sync_directory(link.parent_path());
}

}  // namespace

std::vector<CheckpointRef> list_complete(const fs::path& root) {
  std::vector<CheckpointRef> all = list_folders(root);
  std::erase_if(all, [](const CheckpointRef& ref) { return !is_sound(ref.path); });
  return all;
}

CheckpointWriter::CheckpointWriter(fs::path root, int64_t step, KeepRule keep, SavingJob job)
    : root_(std::move(root)), step_(step), keep_(keep), job_(std::move(job)) {
  MT_CHECK(step >= 0 && keep.newest >= 0 && keep.best >= 0 && keep.every >= 0,
           "step {}, keep {}, {} and {}", step, keep.newest, keep.best, keep.every);
  temporary_ = temporary_checkpoint(root_, step, job_);
  final_ = root_ / step_name(step);
  std::error_code error;
  make_folders(root_);
  remove_stale_checkpoints(root_, job_);  // first, since their space may be needed
  fs::create_directory(temporary_, error);
  if (error) fail("create", temporary_, error.value());
  lease_.emplace(temporary_);
}

CheckpointWriter::~CheckpointWriter() {
  lease_.reset();
  std::error_code error;
  if (!committed_ && fs::exists(temporary_, error)) remove_or_warn(temporary_);
}

fs::path CheckpointWriter::commit() {
  MT_CHECK(!committed_, "commit() called twice");
  step("manifest");
  if (index_)
    write_index(temporary_, step_, *index_, sums_);
  else
    write_manifest(temporary_, step_);
  step("sync");
  sync_tree(temporary_);
  await_readers();
  step("rename");  // after every wait: what the caller checks then still holds
  lease_.reset();
  move_into_place();
  step("sync root");
  sync_directory(root_);
  step("latest");
  try {
    set_latest(root_, step_);
  } catch (const Error& e) {  // the new checkpoint is in place, and found without it
    log::warn(fmt::format("`latest` is not changed: {}", e.message()));
  }
  if (keep_.best > 0) {
    step("best");
    try {
      link_best(root_);         // before anything is deleted: the link never dangles
    } catch (const Error& e) {  // the new checkpoint is in place
      log::warn(fmt::format("`best` is not changed: {}", e.message()));
    }
  }
  step("delete old");
  delete_old();
  step("done");
  return final_;
}

// Waits while a program reads an earlier checkpoint of this step: it opens files by their names,
// and would mix those of both.
void CheckpointWriter::await_readers() const {
  constexpr std::chrono::milliseconds kPause{50};
  const auto end = std::chrono::steady_clock::now() + patience_;
  while (is_being_read(final_)) {
    if (std::chrono::steady_clock::now() >= end) {
      log::warn(
          fmt::format("{} is saved again while a program reads it: that program may find it "
                      "damaged, and must then read it again",
                      final_.string()));
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void CheckpointWriter::move_into_place() {
  if (::rename(temporary_.c_str(), final_.c_str()) == 0) {
    committed_ = true;
    return;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) fail("finish", final_, errno);
  // There is a checkpoint of this step: swap both atomically, so one of them always exists.
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0) {
    committed_ = true;
    remove_or_warn(temporary_);
    return;
  }
  // The file system cannot swap: for a moment there is no checkpoint of this step.
  const fs::path aside = temporary_checkpoint(root_, step_, job_, kReplaced);
  if (::rename(final_.c_str(), aside.c_str()) != 0) fail("replace", final_, errno);
  if (::rename(temporary_.c_str(), final_.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), final_.c_str());
    fail("finish", final_, error);
  }
  committed_ = true;
  remove_or_warn(aside);
}

void CheckpointWriter::delete_old() const {
  if (keep_.newest > 0) {
    std::vector<CheckpointRef> all;
    std::set<int64_t> kept;
    try {
      all = list_complete(root_);
      if (std::ranges::count(all, step_, &CheckpointRef::step) == 0)
        throw RunError(fmt::format("{} cannot be read back", final_.string()));
      kept = steps_to_keep(retained_from(root_, all, step_), keep_);
    } catch (const Error& e) {  // the new checkpoint is in place
      all.clear();
      log::warn(fmt::format("old checkpoints are not deleted: {}", e.message()));
    }
    for (const auto& old : all)
      if (!kept.contains(old.step))
        delete_checkpoint(root_, old, job_, [&] { step("delete one"); });
  }
  remove_stale_checkpoints(root_, job_);
}

void delete_checkpoint(const fs::path& root, const CheckpointRef& old, const SavingJob& job,
                       const std::function<void()>& renamed) {
  // The folder is renamed first: an interrupted deletion never leaves a part of a checkpoint under
  // a checkpoint's name.
  const fs::path doomed = temporary_checkpoint(root, old.step, job, kReplaced);
  if (::rename(old.path.c_str(), doomed.c_str()) == 0) {
    if (renamed) renamed();
    remove_or_warn(doomed);
  } else {
    log::warn(fmt::format("cannot delete {}: {}", old.path.string(), std::strerror(errno)));
  }
}

RetainedFrom retained_from(const fs::path& root, const std::vector<CheckpointRef>& complete,
                           std::optional<int64_t> saved) {
  RetainedFrom from{.steps = {}, .ranking = {}, .pinned = {}, .saved = saved};
  for (const ScoredCheckpoint& scored : score(complete))
    from.ranking.push_back(scored.checkpoint.step);
  for (const CheckpointRef& ref : complete) {
    from.steps.push_back(ref.step);
    if (is_being_read(ref.path)) from.pinned.insert(ref.step);
  }
  const NamedSteps named = named_steps(root);
  for (const int64_t step : {named.latest, named.best})
    if (step >= 0) from.pinned.insert(step);
  return from;
}

std::optional<CheckpointRef> newest_sound(const fs::path& root) {
  const std::vector<CheckpointRef> sound = list_complete(root);
  return sound.empty() ? std::nullopt : std::optional(sound.back());
}

std::vector<ScoredCheckpoint> best_checkpoints(const fs::path& root) {
  return score(list_complete(root));
}

std::optional<double> validation_loss(const fs::path& checkpoint) {
  const auto scored = scored_by_loss({checkpoint, 0});
  return scored ? std::optional(scored->loss) : std::nullopt;
}

NamedSteps named_steps(const fs::path& root) {
  return {.latest = parse_step(read_latest(root)), .best = linked_step(root).value_or(-1)};
}

bool has_best(const fs::path& root) { return linked_step(root).has_value(); }

void link_best(const fs::path& root, int64_t last_step) {
  std::vector<ScoredCheckpoint> scored = best_checkpoints(root);
  std::erase_if(scored, [&](const auto& s) { return s.checkpoint.step > last_step; });
  const fs::path link = root / kBest;
  std::error_code error;
  if (scored.empty()) {
    if (!has_best(root)) return;
    if (!fs::remove(link, error) && error)
      throw RunError(fmt::format("cannot remove {}: {}", link.string(), error.message()));
    return sync_directory(root);
  }
  const int64_t step = scored.front().checkpoint.step;
  if (linked_step(root) == step) return;
  if (fs::exists(fs::symlink_status(link, error)) && !has_best(root))
    return log::warn(
        fmt::format("{} is not a link of mtrain and is kept; the lowest validation loss "
                    "is that of {}",
                    link.string(), step_name(step)));
  try {
    link_atomic(link, step_name(step));
  } catch (const RunError& e) {  // some file systems have no links
    log::warn(
        fmt::format("{}; the lowest validation loss is that of {}", e.message(), step_name(step)));
  }
}

bool is_ours(const fs::path& folder) {
  std::error_code error;
  return named_step(folder) || fs::exists(folder / kState, error) || has_own_manifest(folder);
}

std::optional<CheckpointRef> complete_checkpoint(const fs::path& path) {
  const fs::path folder = link_target(path);
  // Folders of other programs may have files with the names below.
  if (!is_ours(folder)) return std::nullopt;
  std::error_code error;
  const auto has = [&](const char* name) { return int(fs::exists(folder / name, error)); };
  const bool manifest = fs::exists(manifest_path(folder), error);
  const int own = int(manifest) + has(kState);
  const int tensors = has("model.safetensors") + has("optimizer.safetensors") +
                      int(manifest_path(folder).filename() == kIndexJson);
  const bool is_one = named_step(folder) ? own + tensors > 0 : own > 0 && own + tensors > 1;
  return is_one ? std::optional(check_checkpoint(folder)) : std::nullopt;
}

std::optional<CheckpointRef> find_latest(const fs::path& root) {
  std::vector<CheckpointRef> all = list_folders(root);
  std::string named = read_latest(root);
  if (all.empty()) {
    if (has_damaged(root))
      throw RunError(fmt::format("every checkpoint in {} is damaged", root.string()),
                     fmt::format("repair one and remove `.damaged` from its name; to start from "
                                 "scratch, set another train.run_dir, or remove {}",
                                 root.string()));
    if (parse_step(named) >= 0)
      throw RunError(
          fmt::format("{} names {}, but there is no checkpoint", (root / kLatest).string(), named),
          fmt::format("restore the folder, or delete {} to start at step 1",
                      (root / kLatest).string()));
    return std::nullopt;
  }
  // A run may save newer ones at the same time, and delete this one.
  constexpr int kRetries = 5;
  for (int retries = 0;; ++retries) {
    try {
      check_checkpoint(all.back().path);
      break;
    } catch (const Error& e) {
      std::vector<CheckpointRef> now = list_folders(root);
      if (retries == kRetries || now.empty() || now.back().step == all.back().step)
        fail_newest(all, e);
      all = std::move(now);
      named = read_latest(root);
    }
  }
  const CheckpointRef& newest = all.back();
  const std::string name = newest.path.filename().string();
  if (named != name)
    log::warn(fmt::format("{} {}; using {}, the newest checkpoint", (root / kLatest).string(),
                          named.empty() ? "does not exist" : fmt::format("names `{}`", named),
                          name));
  return newest;
}

std::string identity_of(const fs::path& folder) {
  try {
    return content_hash(read_file(manifest_path(folder)));
  } catch (const UserError&) {
    return "";
  }
}

std::vector<CheckpointRef> checkpoints_after(const fs::path& root, int64_t step) {
  auto all = list_folders(root);
  std::erase_if(all, [&](const CheckpointRef& ref) { return ref.step <= step; });
  return all;
}

void set_latest(const fs::path& root, int64_t step) {
  write_file_atomic(root / kLatest, step_name(step) + "\n");
}

CheckpointRef checkpoint_at(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw UserError(fmt::format("checkpoint.load: there is no folder {}", path.string()),
                    "give the path of a checkpoint such as runs/a/checkpoints/step-00000120, or "
                    "`latest`");
  if (const auto ref = complete_checkpoint(path)) return *ref;
  if (const auto ref = find_latest(path)) return *ref;
  throw UserError(fmt::format("checkpoint.load: {} holds no complete checkpoint", path.string()),
                  "give the path of a checkpoint such as runs/a/checkpoints/step-00000120");
}

void require_writable(const fs::path& root, std::string_view field) {
  try {
    make_folders(root);
    // The same folder and file as in a save; remove_stale_checkpoints() removes them if the process
    // is killed.
    const fs::path probe = temporary_checkpoint(root, 0, {});
    std::error_code error;
    fs::create_directory(probe, error);
    if (!error) write_file_atomic(probe / kManifest, "");
    if (error) fail("write to", root, error.value());
    remove_or_warn(probe);
  } catch (const RunError& e) {
    throw UserError(fmt::format("{}: no checkpoint can be saved: {}", field, e.message()),
                    fmt::format("give a folder that can be written with {}=<folder>", field));
  }
}

}  // namespace mtrain::storage
