// Tests after which failed saves a run ends.
#include <catch2/catch.hpp>

#include "run/folder_probe.h"
#include "run/save_failures.h"

namespace run_save_failures_test {

using namespace mtrain;
using Catch::Contains;

TEST_CASE("a run ends at the third failed save in a row, at the last save, or at once") {
  const RunError full("the disk is full", "free some space");
  run::SaveFailures failures(/*stop=*/false);
  CHECK(failures.failed(full, 10, false, "") ==
        "step 10 is not saved: the disk is full; training continues, and nothing is saved yet");
  CHECK_THAT(failures.failed(full, 20, false, "c/step-5"),
             Contains("the newest checkpoint is c/step-5; one more failure in a row ends the run"));
  failures.saved();
  CHECK_NOTHROW(failures.failed(full, 40, false, "c"));
  CHECK_NOTHROW(failures.failed(full, 50, false, "c"));
  try {
    failures.failed(full, 60, false, "c/step-30");
    FAIL("the run continues");
  } catch (const RunError& e) {
    CHECK(e.message() ==
          "step 60 is not saved: the disk is full (the third failure in a row; the newest "
          "checkpoint is c/step-30)");
    CHECK(e.hint() == "free some space");
  }
  CHECK_THROWS_WITH(run::SaveFailures(false).failed(full, 7, true, ""),
                    Contains("no later save can make up for it"));
  CHECK_THROWS_WITH(run::SaveFailures(true).failed(full, 7, false, ""),
                    Contains("checkpoint.on_error is stop"));
}

TEST_CASE("ranks wait for files at most 60 s, and less than other ranks wait for them") {
  using std::chrono::milliseconds;
  CHECK(run::patience_for_files(600) == milliseconds(60'000));
  CHECK(run::patience_for_files(4) == milliseconds(2000));
}

}  // namespace run_save_failures_test
