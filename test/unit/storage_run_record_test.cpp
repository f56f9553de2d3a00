#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "storage/folder_lock.h"
#include "storage/run_record.h"
#include "test/support/temporary_folder.h"

namespace storage_run_record_test {

using namespace mtrain;
using namespace mtrain::storage;

TEST_CASE("a start that fails is recorded as the end, or as restarting") {
  const TemporaryFolder folder;
  write_run_record(folder.path, {.step = 4, .last_step = 10, .job = "a"});
  const RunCulprit culprit{.rank = 1, .host = "h", .message = "rank 1 was killed"};
  record_job_end(
      folder.path,
      {.job = "a", .state = RunState::restarting, .exit_code = 1, .step = 6, .culprit = culprit});
  auto record = current_run_record(folder.path);
  REQUIRE(record);
  CHECK(record->state == RunState::restarting);
  CHECK(record->step == 6);
  CHECK_FALSE(record->exit_code);  // the job has not ended
  CHECK(record->culprit->rank == 1);
  record_job_end(folder.path,
                 {.job = "b", .state = RunState::failed, .step = 9});  // of another job
  CHECK(read_run_record(folder.path)->step == 6);
  record_job_end(
      folder.path,
      {.job = "a", .state = RunState::failed, .exit_code = 1, .step = 8, .culprit = culprit});
  record = current_run_record(folder.path);
  CHECK(record->state == RunState::failed);
  CHECK(record->exit_code == 1);
}

TEST_CASE("a run that waits for a restart is lost when its launcher is gone") {
  const TemporaryFolder folder;
  RunRecord record{.state = RunState::restarting, .step = 4, .job = "a"};
  const auto state_with = [&](const std::string& host, int64_t launcher) {
    record.launcher_host = host;
    record.launcher = launcher;
    write_run_record(folder.path, record);
    return current_run_record(folder.path)->state;
  };
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  CHECK(state_with(host_name(), ::getpid()) == RunState::restarting);
  CHECK(state_with(host_name(), child) == RunState::lost);
  CHECK(state_with("another-host", child) == RunState::restarting);  // cannot be seen from here
  CHECK(state_with("", 0) == RunState::restarting);
  state_with(host_name(), child);
  {
    const FolderLock lock(folder.path, {});  // a rank that loads
    CHECK(current_run_record(folder.path)->state == RunState::restarting);
  }
  record_job_end(folder.path, {.job = "a", .state = RunState::restarting});
  CHECK(read_run_record(folder.path)->launcher == ::getpid());
  CHECK(current_run_record(folder.path)->state == RunState::restarting);
}

}  // namespace storage_run_record_test
