// Tests what a run shows in the pulse of its rank.
#include <chrono>

#include <catch2/catch.hpp>

#include "base/pulse.h"
#include "device/device.h"
#include "run/rank_pulse.h"

namespace run_rank_pulse_test {

using namespace mtrain;
using namespace std::chrono_literals;

TEST_CASE("the time of a step in the pulse includes no load, save or evaluation") {
  const auto device = Device::cpu(1);
  const auto pulse = Pulse::make(0);
  run::DevicePulse shown(*device, pulse);
  const auto step_of = [&](std::chrono::milliseconds time) {
    shown.step_done(std::chrono::steady_clock::now() + time);
    return pulse->state().step_s;
  };
  shown.pause();  // after the load
  const double first = step_of(2s);
  CHECK(first >= 2);
  CHECK(first < 2.5);
  CHECK(step_of(5s) < 3.5);  // since the step before
  shown.pause();             // after an evaluation
  const double after = step_of(1s);
  CHECK(after >= 1);
  CHECK(after < 1.5);
}

}  // namespace run_rank_pulse_test
