#include "run/run_status.h"

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/end_signals.h"
#include "storage/folder_lock.h"

namespace mtrain::run {

using storage::RunState;

RunStatus::RunStatus(std::filesystem::path run_folder, const launch::Job& job, const Pulse& pulse,
                     bool continues)
    : folder_(std::move(run_folder)) {
  std::optional<storage::RunRecord> before;
  try {
    before = storage::read_run_record(folder_);
  } catch (const Error&) {  // a damaged record is replaced
  }
  if (before && continues) {
    record_.attempts = before->attempts + 1;
    record_.step = before->step;
    // Why the job had to restart.
    if (!job.id.empty() && before->job == job.id) record_.culprit = before->culprit;
  }
  record_.ranks = job.size;
  record_.started = storage::utc_now();
  restarts_ = job.restarts_left > 0;
  first_start_ = job.restarts == 0;
  record_.host = host_name();
  record_.job = job.id;
  record_.pid = ::getpid();
  record_.pulse_fd = pulse.descriptor();
  if (const char* launcher = std::getenv(launch::kLauncherPid)) {
    record_.launcher_host = host_name();
    record_.launcher = std::atoll(launcher);
  }
}

void RunStatus::at(int64_t step, int64_t last_step) {
  record_.step = step;
  record_.last_step = last_step;
  begun_ = true;
  write();
}

void RunStatus::ended(int64_t step, const std::string& why) {
  record_.state = why.empty() ? RunState::done : RunState::interrupted;
  record_.step = step;
  record_.exit_code = 0;
  record_.culprit = {};
  if (!why.empty()) record_.culprit = storage::RunCulprit{.rank = -1, .host = "", .message = why};
  write();
}

void RunStatus::failed(const std::exception& error) {
  if (!begun_) return;
  // The launcher knows which rank is the cause, if a peer is.
  const bool of_peer = dynamic_cast<const CommError*>(&error);
  // The launcher restarts ranks, but not after a mistake of the user at the first start.
  const bool mistake = dynamic_cast<const UserError*>(&error) && first_start_;
  record_.state = restarts_ && !mistake ? RunState::restarting : RunState::failed;
  if (record_.state == RunState::failed)
    record_.exit_code = dynamic_cast<const UserError*>(&error) ? 2 : 1;
  record_.culprit = storage::RunCulprit{
      .rank = of_peer ? -1 : 0, .host = of_peer ? "" : host_name(), .message = error.what()};
  write();
}

void RunStatus::write() {
  try {
    storage::write_run_record(folder_, record_);
  } catch (const std::exception& e) {
    if (std::exchange(warned_, true)) return;
    log::warn(fmt::format("`mtrain status` will not know this run: {}", e.what()));
  }
}

}  // namespace mtrain::run
