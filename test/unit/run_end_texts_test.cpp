#include <catch2/catch.hpp>

#include "run/end_texts.h"

namespace run_end_texts_test {

using namespace mtrain::run;

TEST_CASE("a run prints its reaction to a signal at once") {
  CHECK(answer_to_signal("Ctrl-C", Doing::step, 120, true) ==
        "Ctrl-C: step 120 ends first, then the run is saved. Again: end without saving.");
  CHECK(answer_to_signal("signal 15", Doing::step, 1, false) ==
        "signal 15: step 1 ends first, then the run. It is not saved (checkpoint.at_end). Again: "
        "end at once.");
  CHECK(answer_to_signal("Ctrl-C", Doing::step_done, 7, true) ==
        "Ctrl-C: step 7 is done, then the run is saved. Again: end without saving.");
  CHECK(answer_to_signal("Ctrl-C", Doing::evaluation, 7, true) ==
        "Ctrl-C: the evaluation after step 7 ends first, then the run is saved. Again: end without "
        "saving.");
  CHECK(answer_to_signal("Ctrl-C", Doing::save, 8, true) ==
        "Ctrl-C: step 8 is saved first, then the run ends. Again: end without saving.");
  CHECK(answer_to_signal("Ctrl-C", Doing::starting, 0, true) ==
        "Ctrl-C: the run ends when it has started. Again: end at once.");
}

TEST_CASE("an end without saving says which steps are lost") {
  CHECK(unsaved_text(0, 0, "") == "no step was done");
  CHECK(unsaved_text(0, 1, "") == "step 1 is lost; there is no checkpoint");
  CHECK(unsaved_text(0, 9, "") == "steps 1 to 9 are lost; there is no checkpoint");
  CHECK(unsaved_text(5, 5, "c/step-5") == "all steps are in c/step-5");
  CHECK(unsaved_text(5, 7, "c/step-5") == "steps 6 to 7 are lost; the last checkpoint is c/step-5");
}

TEST_CASE("a save shows how much is written, in the unit of all of it") {
  const int64_t gib = int64_t{1} << 30;
  CHECK(bytes_text("saving step 1000", gib * 12 / 10, gib * 34 / 10) ==
        "saving step 1000 (1.2 of 3.4 GiB)");
  CHECK(percent_text("reading weights", gib, 3 * gib) == "reading weights 33 %");
  CHECK(percent_text("reading weights", 0, 0) == "reading weights 100 %");
  CHECK(bytes_text("saving step 1", 0, 2048) == "saving step 1 (0.0 of 2.0 KiB)");
  CHECK(bytes_text("saving step 1", 0, 0) == "saving step 1 (0.0 of 0.0 B)");
}

}  // namespace run_end_texts_test
