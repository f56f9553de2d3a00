#include "run/run_folder.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "checkpoint/train_checkpoint.h"
#include "interchange/locate_checkpoint.h"
#include "interchange/model_source.h"
#include "plan/saved_recipe.h"
#include "storage/new_folder.h"

namespace mtrain::run {

namespace fs = std::filesystem;

namespace {

using Load = plan::FolderOptions::Load;

fs::path metrics_path(const plan::FolderOptions& f) {
  return fs::path(f.run_dir) / "metrics.jsonl";
}

// The file that records to which job the files of a run folder belong. It has a line "start" for
// each launcher of the job, and a line "from" with the checkpoint from which the job began.
fs::path job_path(const fs::path& run_folder) { return run_folder / "job.txt"; }
fs::path job_path(const plan::FolderOptions& f) { return job_path(fs::path(f.run_dir)); }
constexpr std::string_view kStart = "start";
constexpr std::string_view kFrom = "from ";
std::string start_line(int restarts, const std::string& job_id) {
  return fmt::format("{} {} {}", kStart, restarts, job_id);
}

bool has_metrics(const plan::FolderOptions& f) {
  std::error_code error;
  const auto bytes = fs::file_size(metrics_path(f), error);
  return !error && bytes > 0;
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

fs::path root_of(const storage::CheckpointRef& ref) {
  std::error_code error;
  return fs::weakly_canonical(ref.path, error).parent_path();  // the path may end with a slash
}

// Returns whether the metrics in the run folder belong to the run that saved this checkpoint. They
// do if the checkpoints are in the run folder, even if the folder has been renamed since.
bool is_own_run(const plan::FolderOptions& f, const storage::CheckpointRef& start) {
  const fs::path root = root_of(start);
  if (!same_folder(root, f.checkpoint_dir)) return false;
  if (same_folder(root, fs::path(f.run_dir) / "checkpoints") || !has_metrics(f)) return true;
  return same_folder(
      plan::read_saved_run(interchange::model_source(), checkpoint::saved_recipe(start.path))
          .folders.run_dir,
      f.run_dir);
}

// Returns the newest checkpoint of this run. Throws DamagedStart if it is damaged, and a sound one
// of the run is before it.
std::optional<storage::CheckpointRef> newest_own(const plan::FolderOptions& f) {
  try {
    return storage::find_latest(f.checkpoint_dir);
  } catch (const storage::DamagedCheckpoint& e) {
    if (const auto before = storage::newest_sound(f.checkpoint_dir);
        before && before->path != e.checkpoint() && is_own_run(f, *before))
      throw DamagedStart(e);
    throw;
  }
}

std::optional<storage::CheckpointRef> find_start(const plan::FolderOptions& f) {
  switch (f.load) {
    case Load::none: return std::nullopt;
    case Load::latest: return newest_own(f);
    case Load::path: break;
  }
  if (auto ref = interchange::locate_start(f.load_path, f.checkpoint_dir)) return ref;
  if (f.load_or_start) return std::nullopt;
  if (f.load_path == "best")
    throw UserError(
        fmt::format("checkpoint.load: {} has no best checkpoint", f.checkpoint_dir),
        "checkpoint.keep_best=1 keeps the one with the lowest validation loss; `latest` is the "
        "newest");
  return storage::checkpoint_at(f.load_path);  // throws the error that fits
}

// The entry of job.txt about an earlier start of this job.
struct EarlierStart {
  std::string from;  // the path of the checkpoint from which it began; empty: none
};

// Returns nothing if the folder belongs to another job, or if this start itself has written
// job.txt. The latter happens if the launcher's command trains twice.
std::optional<EarlierStart> find_earlier_start(const plan::FolderOptions& f,
                                               const launch::Job& job) {
  std::error_code error;
  if (job.id.empty() || !fs::is_regular_file(job_path(f), error)) return std::nullopt;
  EarlierStart earlier;
  bool ours = false;
  for (const std::string& line : split(read_file(job_path(f)), '\n')) {
    if (line.starts_with(kFrom)) earlier.from = line.substr(kFrom.size());
    for (int restarts = 0; restarts < job.restarts; ++restarts)
      ours = ours || line == start_line(restarts, job.id);
  }
  return ours ? std::optional(earlier) : std::nullopt;
}

// Returns the checkpoint from which a restarted job continues. When the job began, the folder of
// checkpoints had no later step than the checkpoint from which it began. Therefore, if there is a
// later step, the job has saved something.
std::optional<storage::CheckpointRef> find_restart(const plan::FolderOptions& f,
                                                   const EarlierStart& earlier) {
  const auto newest = newest_own(f);
  // That checkpoint may be deleted or partly deleted by now, since a run deletes its old
  // checkpoints.
  std::optional<storage::CheckpointRef> from;
  try {
    if (!earlier.from.empty()) from = storage::complete_checkpoint(earlier.from);
  } catch (const RunError&) {
    if (!newest) throw;
  }
  if (!newest) return earlier.from.empty() || from ? from : find_start(f);
  const bool saved_nothing =
      from && same_folder(root_of(*from), f.checkpoint_dir) && from->step >= newest->step;
  return saved_nothing ? from : newest;
}

// Renames `path` to a free name, or copies it there. Returns a line about it for the log.
std::string put_aside(const fs::path& path, bool copy = false) {
  const fs::path to = storage::free_name(path, ".abandoned");
  std::error_code error;
  if (copy)
    fs::copy_file(path, to, error);
  else
    fs::rename(path, to, error);
  if (error)
    throw RunError(
        fmt::format("cannot keep {} as {}: {}", path.string(), to.string(), error.message()));
  return fmt::format("{} is kept as {}", path.string(), to.filename().string());
}

}  // namespace

bool is_own_checkpoint(const plan::FolderOptions& f, const storage::CheckpointRef& start) {
  return same_folder(root_of(start), f.checkpoint_dir);
}

std::optional<storage::CheckpointRef> claim_run_folder(const plan::FolderOptions& f,
                                                       const launch::Job& job) {
  if (const auto earlier = find_earlier_start(f, job)) return find_restart(f, *earlier);
  const auto start = find_start(f);
  if (start && is_own_run(f, *start)) return start;
  const std::string& run = f.run_dir;
  const bool inside = same_folder(f.checkpoint_dir, fs::path(run) / "checkpoints");
  const std::string another =
      inside ? "train.run_dir=<new folder>"
             : "train.run_dir=<new folder> checkpoint.dir=<new folder>/checkpoints";
  if (start && is_own_checkpoint(f, *start))
    throw UserError(fmt::format("the metrics in {} are not of the run that wrote {}", run,
                                start->path.string()),
                    "give the train.run_dir of the checkpoint's run, or " + another);
  const auto old = storage::find_latest(f.checkpoint_dir);
  // These may repeat a run that has saved nothing.
  const bool repeat = f.load == Load::latest || f.load_or_start;
  if (!old && (repeat || !has_metrics(f))) return start;
  const std::string holds =
      old ? fmt::format("{} holds a run that has reached step {}", inside ? run : f.checkpoint_dir,
                        old->step)
          : fmt::format("{} holds the metrics of a run that has saved nothing", run);
  if (start)
    throw UserError(
        fmt::format("{}, and checkpoint.load={} is a checkpoint of another run", holds,
                    f.load == Load::latest ? "latest" : f.load_path),
        fmt::format("{}continue from that checkpoint with {}",
                    old ? "continue the run in this folder with checkpoint.load=latest, or " : "",
                    another));
  throw UserError(holds, fmt::format("{} it with checkpoint.load=latest, or start another with {}",
                                     old ? "continue" : "repeat", another));
}

bool continues_run(const plan::FolderOptions& f, const launch::Job& job) {
  return f.load == Load::latest || find_earlier_start(f, job).has_value();
}

std::optional<DamagedStart> replaceable(const plan::FolderOptions& f, const launch::Job& job,
                                        const storage::CheckpointRef& start,
                                        const storage::DamagedCheckpoint& damage) {
  if (!is_own_checkpoint(f, start) || (f.load != Load::latest && job.restarts == 0)) return {};
  std::optional<storage::CheckpointRef> before;
  for (const storage::CheckpointRef& ref : storage::list_complete(f.checkpoint_dir))
    if (ref.step < start.step) before = ref;
  const bool newest = storage::checkpoints_after(f.checkpoint_dir, start.step).empty();
  return newest && before && is_own_run(f, *before) ? std::optional(DamagedStart(damage))
                                                    : std::nullopt;
}

void make_run_folder(const plan::FolderOptions& f) {
  try {
    storage::make_folders(f.run_dir);
  } catch (const RunError& e) {
    throw UserError(fmt::format("train.run_dir: {}", e.message()),
                    "give a folder that can be written with train.run_dir=<folder>");
  }
  for (const char* name : {"recipe.yaml", "metrics.jsonl", "job.txt"})
    remove_stale_temporaries(fs::path(f.run_dir) / name);
}

std::vector<std::string> set_aside_abandoned(const plan::FolderOptions& f,
                                             const std::optional<storage::CheckpointRef>& start,
                                             const std::function<void()>& renaming) {
  if (!start || !is_own_checkpoint(f, *start)) {
    if (!has_metrics(f)) return {};
    std::vector<std::string> lines{put_aside(metrics_path(f))};
    // Another run's numbers would be shown as the beginning of this one's.
    const fs::path events = fs::path(f.run_dir) / "tb";
    std::error_code error;
    if (same_folder(events, f.tensorboard_dir) && fs::is_directory(events, error))
      lines.push_back(put_aside(events));
    return lines;
  }
  const auto later = storage::checkpoints_after(f.checkpoint_dir, start->step);
  if (later.empty()) return {};
  if (renaming) renaming();
  std::vector<std::string> lines;
  if (has_metrics(f)) lines.push_back(put_aside(metrics_path(f), /*copy=*/true));
  storage::set_latest(f.checkpoint_dir,
                      start->step);  // first: `latest` then never names a renamed one
  if (storage::has_best(f.checkpoint_dir)) storage::link_best(f.checkpoint_dir, start->step);
  for (const storage::CheckpointRef& ref : later) lines.push_back(put_aside(ref.path));
  return lines;
}

void write_job(const plan::FolderOptions& f, const std::vector<std::string>& job_ids, int restarts,
               const std::optional<storage::CheckpointRef>& start) {
  std::string lines;
  for (const std::string& id : std::set(job_ids.begin(), job_ids.end()))
    if (!id.empty()) lines += start_line(restarts, id) + "\n";
  if (lines.empty()) return;
  if (start) lines += fmt::format("{}{}\n", kFrom, start->path.string());
  write_file_atomic(job_path(f), lines);
}

std::set<std::string, std::less<>> recorded_jobs(const fs::path& run_folder) {
  const fs::path file = job_path(run_folder);
  std::error_code error;
  std::set<std::string, std::less<>> ids;
  if (!fs::is_regular_file(file, error)) return ids;
  for (const std::string& line : split(read_file(file), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() == 3 && words[0] == kStart) ids.insert(words[2]);
  }
  return ids;
}

}  // namespace mtrain::run
