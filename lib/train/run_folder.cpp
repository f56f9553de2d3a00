#include "train/run_folder.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "train/snapshot.h"

namespace mtrain {

namespace fs = std::filesystem;

namespace {

fs::path metrics_path(const Recipe& r) { return fs::path(r.train.run_dir) / "metrics.jsonl"; }

fs::path job_ids_path(const Recipe& r) { return fs::path(r.train.run_dir) / "job.txt"; }

bool has_metrics(const Recipe& r) {
  std::error_code error;
  const auto bytes = fs::file_size(metrics_path(r), error);
  return !error && bytes > 0;
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

fs::path root_of(const CheckpointRef& ref) {
  std::error_code error;
  return fs::weakly_canonical(ref.path, error).parent_path();  // a path may end in a slash
}

// Whether the metrics in the run folder are those of the run that saved this checkpoint. Where the
// checkpoints lie in the run folder they are, though the folder may have been renamed since.
bool is_own_run(const Recipe& r, const CheckpointRef& start) {
  const fs::path root = root_of(start);
  if (!same_folder(root, r.checkpoint.dir)) return false;
  if (same_folder(root, fs::path(r.train.run_dir) / "checkpoints") || !has_metrics(r)) return true;
  return same_folder(load_saved_recipe(start.path).train.run_dir, r.train.run_dir);
}

std::optional<CheckpointRef> find_start(const Recipe& r) {
  if (!r.checkpoint.load) return std::nullopt;
  if (*r.checkpoint.load == "latest") return find_latest(r.checkpoint.dir);
  if (auto ref = locate_checkpoint(*r.checkpoint.load)) return ref;
  return resolve_load(*r.checkpoint.load, r.checkpoint.dir);  // says what is wrong with it
}

// Whether an earlier start of this job has written its ids.
bool is_restart(const Recipe& r, const std::string& job_id) {
  std::error_code error;
  if (job_id.empty() || !fs::is_regular_file(job_ids_path(r), error)) return false;
  const auto ids = split(read_file(job_ids_path(r)), '\n');
  return std::ranges::find(ids, job_id) != ids.end();
}

// Where a job goes on that was started again. When it began, the folder of checkpoints held no
// later step than that of the checkpoint that it was given; what it saves is of later steps.
std::optional<CheckpointRef> find_restart(const Recipe& r) {
  const auto newest = find_latest(r.checkpoint.dir);
  if (!newest) return find_start(r);
  if (!r.checkpoint.load || *r.checkpoint.load == "latest") return newest;
  // The given checkpoint may be gone by now: a run deletes its old ones.
  const auto given = locate_checkpoint(*r.checkpoint.load);
  const bool saved_nothing =
      given && same_folder(root_of(*given), r.checkpoint.dir) && given->step >= newest->step;
  return saved_nothing ? given : newest;
}

fs::path free_name(const fs::path& path) {
  fs::path name = path;
  name += ".abandoned";
  std::error_code error;
  for (int n = 2; fs::exists(name, error); ++n)
    name = fmt::format("{}.abandoned-{}", path.string(), n);
  return name;
}

// Gives `path` a name of its own and returns a line that says so.
std::string put_aside(const fs::path& path, bool copy = false) {
  const fs::path to = free_name(path);
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

std::optional<CheckpointRef> claim_run_folder(const Recipe& r, const std::string& job_id) {
  if (is_restart(r, job_id)) return find_restart(r);
  const auto start = find_start(r);
  if (start && is_own_run(r, *start)) return start;
  const std::string& run = r.train.run_dir;
  const std::string another = "train.run_dir=<new folder>";
  if (start && same_folder(root_of(*start), r.checkpoint.dir))
    throw UserError(fmt::format("{} holds the metrics of another run than that of {}", run,
                                start->path.string()),
                    "give the train.run_dir of that run, or " + another);
  const auto old = find_latest(r.checkpoint.dir);
  const bool repeat = r.checkpoint.load == "latest";  // a run that had saved nothing yet
  if (!old && (repeat || !has_metrics(r))) return start;
  const bool inside = same_folder(r.checkpoint.dir, fs::path(run) / "checkpoints");
  const std::string holds =
      old ? fmt::format("{} holds a run that has come to step {}", inside ? run : r.checkpoint.dir,
                        old->step)
          : fmt::format("{} holds the metrics of a run that has saved nothing", run);
  if (start)
    throw UserError(
        fmt::format("{}, and checkpoint.load={} is of another", holds, *r.checkpoint.load),
        fmt::format("{}go on from that one with {}",
                    old ? "continue the one here with checkpoint.load=latest, or " : "", another));
  throw UserError(holds, fmt::format("{} it with checkpoint.load=latest, or start another with {}",
                                     old ? "continue" : "repeat", another));
}

void make_run_folder(const Recipe& r) {
  std::error_code error;
  fs::create_directories(r.train.run_dir, error);
  if (error)
    throw UserError(
        fmt::format("cannot create the run folder {}: {}", r.train.run_dir, error.message()),
        "give a folder that can be written with train.run_dir=<folder>");
  for (const char* name : {"recipe.yaml", "metrics.jsonl", "job.txt"})
    remove_stale_temporaries(fs::path(r.train.run_dir) / name);
}

std::vector<std::string> set_aside_abandoned(const Recipe& r,
                                             const std::optional<CheckpointRef>& start) {
  if (!start || !same_folder(root_of(*start), r.checkpoint.dir)) {
    if (!has_metrics(r)) return {};
    return {put_aside(metrics_path(r))};
  }
  const auto later = checkpoints_after(r.checkpoint.dir, start->step);
  if (later.empty()) return {};
  std::vector<std::string> lines;
  if (has_metrics(r)) lines.push_back(put_aside(metrics_path(r), /*copy=*/true));
  set_latest(r.checkpoint.dir, start->step);  // first: it must not name one that has moved
  for (const CheckpointRef& ref : later) lines.push_back(put_aside(ref.path));
  return lines;
}

void write_job_ids(const Recipe& r, const std::vector<std::string>& job_ids) {
  std::string lines;
  for (const std::string& id : std::set(job_ids.begin(), job_ids.end()))
    if (!id.empty()) lines += id + "\n";
  if (!lines.empty()) write_file_atomic(job_ids_path(r), lines);
}

std::optional<CheckpointRef> locate_checkpoint(const fs::path& path) {
  if (auto ref = complete_checkpoint(path)) return ref;
  if (auto ref = find_latest(path)) return ref;
  if (auto ref = find_latest(path / "checkpoints")) return ref;
  std::error_code error;
  if (!fs::is_regular_file(path / "recipe.yaml", error)) return std::nullopt;
  return find_latest(load_saved_recipe(path).checkpoint.dir);
}

}  // namespace mtrain
