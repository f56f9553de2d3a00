// run.json in the run folder: whether a run is running, done, interrupted or failed, and why.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/enum_name.h"

namespace mtrain::storage {

// `lost` is never written: it is what a reader makes of `running` if nobody holds the folder, and
// of `restarting` if the launcher is gone, too. `restarting`: a start has failed, and the launcher
// makes another.
enum class RunState { running, restarting, done, interrupted, failed, lost };
constexpr auto enum_names(RunState) {
  return std::array{
      EnumName{RunState::running, "running"}, EnumName{RunState::restarting, "restarting"},
      EnumName{RunState::done, "done"},       EnumName{RunState::interrupted, "interrupted"},
      EnumName{RunState::failed, "failed"},   EnumName{RunState::lost, "lost"}};
}

struct RunCulprit {
  int rank = -1;  // -1: unknown, or no single rank
  std::string host, message;
};

struct RunRecord {
  RunState state = RunState::running;
  int64_t step = 0, last_step = 0;  // the last step that was done or saved; the last of the run
  int64_t attempts = 1;             // starts of the run, restarts included
  int ranks = 1;
  std::optional<int> exit_code;       // of the job; absent while it runs
  std::optional<RunCulprit> culprit;  // of the last failure; of an interruption, what asked for it
  std::string started, updated;       // of the last attempt: UTC
  // Where rank 0 runs: a watcher on this host finds the pulses of the ranks.
  std::string host, job;
  int64_t pid = 0;
  int pulse_fd = -1;
  // The process that restarts the ranks. Only a reader on its host can see whether it lives; 0:
  // unknown.
  std::string launcher_host;
  int64_t launcher = 0;
};

std::filesystem::path run_record_path(const std::filesystem::path& run_folder);

// Writes the file, and sets the time of the update. Throws RunError.
void write_run_record(const std::filesystem::path& run_folder, RunRecord record);

// Returns the record as the file has it; nothing if there is no file. Throws UserError if it is not
// a record.
std::optional<RunRecord> read_run_record(const std::filesystem::path& run_folder);

// The same, with the state `lost` for a run that has ended without a word.
std::optional<RunRecord> current_run_record(const std::filesystem::path& run_folder);

// How a launcher, which is this process, saw the end of a start of its job.
struct JobEnd {
  std::string job;  // the launcher's id of it
  RunState state = RunState::failed;
  int exit_code = 1;
  int64_t step = 0;
  std::optional<RunCulprit> culprit;
};
// Writes the end into the record of this job. Does nothing if the record belongs to another job, or
// there is none. Throws as the functions above.
void record_job_end(const std::filesystem::path& run_folder, const JobEnd& end);

}  // namespace mtrain::storage
