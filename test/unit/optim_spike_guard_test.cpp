#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "optim/spike_guard.h"

namespace optim_spike_guard_test {

using namespace mtrain;
using optim::SpikeGuard;

TEST_CASE("a norm above the factor of the median is a spike, once there are enough norms") {
  SpikeGuard guard({.skip = true, .factor = 3});
  for (size_t i = 0; i < SpikeGuard::kLeast; ++i) {
    CHECK_FALSE(guard.exceeds(1e30f));
    CHECK(guard.median() == 0);
    guard.accepted(float(i % 3 + 1));
  }
  CHECK(guard.median() == 2);
  CHECK(guard.limit() == 6);
  CHECK_FALSE(guard.exceeds(6));
  CHECK(guard.exceeds(6.001f));
  CHECK_FALSE(guard.exceeds(std::numeric_limits<float>::infinity()));  // not finite: no spike
  CHECK_FALSE(guard.exceeds(std::nanf("")));
  for (size_t i = 0; i < SpikeGuard::kWindow; ++i) guard.accepted(10);
  CHECK(guard.median() == 10);  // earlier norms are forgotten
}

TEST_CASE("without a factor no norm is a spike") {
  SpikeGuard guard({.skip = true});
  for (int i = 0; i < 200; ++i) guard.accepted(1);
  CHECK_FALSE(guard.exceeds(3e38f));
  CHECK(guard.save() == "0");
  CHECK(SpikeGuard(plan::SpikeOptions{}).save().empty());
}

TEST_CASE("skipped steps are counted until one is accepted, and a saved guard continues") {
  SpikeGuard guard({.skip = true, .factor = 2.5});
  for (int i = 0; i < 40; ++i) guard.accepted(0.1f * float(i + 1));
  guard.skipped(), guard.skipped();
  CHECK(guard.in_row() == 2);
  SpikeGuard other({.skip = true, .factor = 2.5});
  other.load(guard.save());
  CHECK(other.in_row() == 2);
  CHECK(other.limit() == guard.limit());
  CHECK(other.save() == guard.save());
  other.accepted(1);
  CHECK(other.in_row() == 0);
  for (const char* bad : {"", "x", "-1", "9", "0 1 two", "0 nan", "0 -1", "0 inf"})
    CHECK_THROWS_AS(other.load(bad), UserError);
  CHECK_THROWS_AS(other.load([] {
    std::string text = "0";
    for (int i = 0; i < 200; ++i) text += " 1";
    return text;
  }()),
                  UserError);
}

}  // namespace optim_spike_guard_test
