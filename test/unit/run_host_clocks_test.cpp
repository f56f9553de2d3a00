// A clock that is set while a run lasts is reported once, with its direction and the seconds.
#include <catch2/catch.hpp>

#include "run/host_clocks.h"

namespace run_host_clocks_test {

using namespace mtrain::run;
using Catch::Contains;
using Seconds = std::chrono::duration<double>;

TEST_CASE("a clock that is set back or forward is reported once, and drift is not") {
  ClockWatch watch;
  double clock = 1e9, steady = 50;
  const auto look = [&](double clock_by, double steady_by) {
    clock += clock_by, steady += steady_by;
    return watch.look(Seconds(clock), Seconds(steady));
  };
  CHECK(look(0, 0).empty());
  CHECK(look(10, 10).empty());
  CHECK(look(14, 10).empty());  // a time service corrects it
  CHECK_THAT(look(-3599, 1), Contains("was set back by 3600 s"));
  CHECK(look(1, 1).empty());
  CHECK_THAT(look(3601, 1), Contains("was set forward by 3600 s"));
  CHECK(look(1, 1).empty());
  CHECK(look(100000, 100000).empty());  // a long step
}

}  // namespace run_host_clocks_test
