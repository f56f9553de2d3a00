#include <catch2/catch.hpp>

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

}  // namespace storage_run_record_test
