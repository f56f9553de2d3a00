// The folders that a run owns.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "run/run_lock.h"
#include "storage/folder_lock.h"
#include "test/support/temporary_folder.h"

namespace run_lock_test {

using namespace mtrain;
using Catch::Contains;

namespace {

plan::MeetingPlan meeting(const TemporaryFolder& root, const std::string& run, bool saves) {
  plan::MeetingPlan plan;
  plan.folders.run_dir = (root / run).string();
  plan.folders.checkpoint_dir = (root / "checkpoints").string();
  plan.checkpoint.at_end = saves;
  return plan;
}

}  // namespace

TEST_CASE("a run that saves nothing takes the folder of checkpoints when it renames some") {
  const TemporaryFolder root;
  const auto checkpoints = root / "checkpoints";
  run::RunLock reads(meeting(root, "reads", false), {}, {});
  CHECK_FALSE(storage::is_folder_held(checkpoints));
  {
    const run::RunLock saves(meeting(root, "saves", true), {}, {});
    CHECK(storage::is_folder_held(checkpoints));
    CHECK_THROWS_WITH(reads.hold_checkpoints(),
                      Contains(checkpoints.string() + " is in use by process"));
  }
  CHECK_FALSE(storage::is_folder_held(checkpoints));
  reads.hold_checkpoints();
  reads.hold_checkpoints();
  CHECK(storage::is_folder_held(checkpoints));
  CHECK_THROWS_WITH(run::RunLock(meeting(root, "saves", true), {}, {}),
                    Contains("checkpoints is in use by process"));
  reads.require_held();
}

TEST_CASE("a run whose checkpoints are in its run folder holds it once") {
  const TemporaryFolder root;
  plan::MeetingPlan plan = meeting(root, "run", false);
  plan.folders.checkpoint_dir = plan.folders.run_dir;
  run::RunLock lock(plan, {}, {});
  lock.hold_checkpoints();
  lock.require_held();
  CHECK(storage::is_folder_held(root / "run"));
}

}  // namespace run_lock_test
