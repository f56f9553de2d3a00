#include "run/start_choice.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/file.h"
#include "base/log.h"
#include "base/strings.h"
#include "storage/damaged_checkpoint.h"

namespace mtrain::run {

namespace fs = std::filesystem;

namespace {

constexpr const char *kNone = "none", *kFrom = "from", *kDamaged = "damaged", *kSound = "sound";

// How often a checkpoint may be damaged at the first reading, and sound at the second one.
constexpr int kMostSound = 4;

int64_t number_in(const std::string& text) {
  int64_t value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string lines_of(std::initializer_list<std::string> lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

}  // namespace

ClaimedStart claim_start(const plan::FolderOptions& folders, const launch::Job& job) {
  try {
    return {.checkpoint = claim_run_folder(folders, job), .damaged = {}};
  } catch (const DamagedStart& e) {
    return {.checkpoint = {}, .damaged = e};
  }
}

std::optional<storage::CheckpointRef> StartChoice::agree(ClaimedStart claimed) {
  for (int sound = 0;;) {
    std::string own;
    if (lock_) {
      if (claimed.damaged)
        own = lines_of(
            {kDamaged, std::to_string(claimed.damaged->block()), claimed.damaged->file().string()});
      else if (claimed.checkpoint)
        own = lines_of({kFrom, std::to_string(claimed.checkpoint->step),
                        storage::identity_of(claimed.checkpoint->path),
                        claimed.checkpoint->path.string()});
      else
        own = kNone;
    }
    const std::vector<std::string> lines = split(control_.texts(own).front(), '\n');
    if (lines[0] == kNone) return std::nullopt;
    if (lines[0] == kFrom) {
      MT_CHECK(lines.size() == 4, "{} lines", lines.size());
      const storage::CheckpointRef start{lines[3], number_in(lines[1])};
      require_visible(start, lines[2]);
      return start;
    }
    MT_CHECK(lines[0] == kDamaged && lines.size() == 3, "{}", lines[0]);
    const bool proven = confirmed(lines[2], number_in(lines[1]));
    if (!proven && ++sound == kMostSound)
      throw RunError(
          fmt::format("{} is damaged, and sound when it is read again, {} times in a row", lines[2],
                      sound),
          "check the memory and the disks of these hosts; nothing was changed");
    if (lock_) claimed = proven ? set_aside(*claimed.damaged) : claim_start(folders_, job_);
  }
}

std::optional<storage::CheckpointRef> StartChoice::replace(
    const storage::CheckpointRef& start, const storage::DamagedCheckpoint& damage) {
  std::optional<DamagedStart> own;
  if (lock_) own = replaceable(folders_, job_, start, damage);
  if (!control_.any(own.has_value())) throw damage;
  if (!confirmed(damage.file(), damage.block())) return start;
  return agree(lock_ ? set_aside(*own) : ClaimedStart());
}

// Whether the file is damaged. All ranks must find the same.
bool StartChoice::confirmed(const fs::path& file, int64_t block) const {
  std::string own;
  try {
    own = storage::is_damaged_again(file, block) ? kDamaged : kSound;
  } catch (const Error& e) {
    own = e.message();
  }
  const std::vector<std::string> all = control_.texts(own + "\n" + host_name());
  const auto result = [&](size_t rank) { return all[rank].substr(0, all[rank].rfind('\n')); };
  const bool same = std::ranges::all_of(
      all, [&](const std::string& text) { return text.starts_with(result(0) + "\n"); });
  if (same && result(0) == kDamaged) return true;
  if (same && result(0) == kSound) {
    if (lock_)
      log::warn(
          fmt::format("{} was damaged when it was read first, and is sound when it is read "
                      "again: check the memory and the disks of these hosts",
                      file.string()));
    return false;
  }
  std::string found;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (rank == 0 || result(rank) != result(0))
      found += fmt::format("{}rank {} on {}: {}", found.empty() ? "" : "; ", rank,
                           all[rank].substr(all[rank].rfind('\n') + 1), result(rank));
  throw RunError(
      fmt::format("{} cannot be read the same way on all ranks ({})", file.string(), found),
      "check the file system of these hosts; nothing was changed");
}

// Renames the damaged checkpoint, and claims the one before it.
ClaimedStart StartChoice::set_aside(const DamagedStart& damage) const {
  lock_->require_held();
  lock_->hold_checkpoints();
  const fs::path kept = storage::set_aside_damaged(damage.checkpoint());
  ClaimedStart next = claim_start(folders_, job_);
  std::string then = "an earlier one is tried";
  if (next.checkpoint) {
    const fs::path root = damage.checkpoint().parent_path();
    storage::set_latest(root, next.checkpoint->step);
    if (storage::has_best(root)) storage::link_best(root);
    then =
        fmt::format("the run continues from {}, the one before it", next.checkpoint->path.string());
  }
  log::warn(
      fmt::format("{}; this was confirmed by a second reading. The checkpoint is kept as {}, "
                  "and {}",
                  damage.what_is_wrong(), kept.string(), then));
  return next;
}

// Waits until this rank's file system shows the checkpoint as rank 0 sees it.
void StartChoice::require_visible(const storage::CheckpointRef& start,
                                  const std::string& identity) const {
  constexpr std::chrono::milliseconds kPause{100};
  const auto end = std::chrono::steady_clock::now() + patience_;
  bool seen = storage::identity_of(start.path) == identity;
  while (!seen && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
    seen = storage::identity_of(start.path) == identity;
  }
  const std::vector<std::string> hosts = control_.texts(seen ? "" : host_name());
  const auto blind = std::ranges::find_if(hosts, [](const auto& host) { return !host.empty(); });
  if (blind == hosts.end()) return;
  throw RunError(fmt::format("rank {} on {} does not see {} as rank 0 does, after {} s",
                             blind - hosts.begin(), *blind, start.path.string(),
                             std::chrono::duration_cast<std::chrono::seconds>(patience_).count()),
                 "give a folder that all hosts share, with the same path on each");
}

}  // namespace mtrain::run
