// Tests what `mtrain doctor` makes of measurements.
#include <string>

#include <catch2/catch.hpp>

#include "run/doctor.h"

namespace run_doctor_test {

using namespace mtrain::run;
using Catch::Contains;

TEST_CASE("a core that is slower than the others is named") {
  CHECK(judge_cores({{0, 10}, {1, 9.5}, {2, 10.2}, {3, 9}}).verdict == Verdict::ok);
  const DoctorRow slow = judge_cores({{0, 10}, {1, 9.5}, {2, 5}, {3, 10}});
  CHECK(slow.verdict == Verdict::fault);
  CHECK_THAT(slow.value, Contains("slow: core 2 (5"));
  CHECK(judge_cores({{4, 10}, {5, 6}}).verdict == Verdict::fault);
  CHECK(judge_cores({{4, 6}, {5, 10}}).verdict == Verdict::fault);
  CHECK(judge_cores({{4, 10}}).verdict == Verdict::ok);
  CHECK(judge_cores({}).verdict == Verdict::warning);
  // Other processes take half of every core.
  const DoctorRow busy = judge_cores({{0, 5, 10}, {1, 5.1, 9.9}});
  CHECK(busy.verdict == Verdict::fault);
  CHECK_THAT(busy.value, Contains("slow: core 0 (50 %), 1 (51 %)"));
}

TEST_CASE("a full disk is a fault, and a nearly full one a warning") {
  constexpr int64_t kMiB = 1 << 20, kGiB = int64_t(1) << 30;
  const auto verdict = [](int64_t free, int64_t inodes = -1) {
    return judge_space("disk", "/runs", {free, 100 * kGiB, inodes}).verdict;
  };
  CHECK(verdict(50 * kGiB) == Verdict::ok);
  CHECK(verdict(2 * kGiB) == Verdict::warning);
  CHECK(verdict(100 * kMiB) == Verdict::fault);
  CHECK(verdict(0) == Verdict::fault);
  CHECK(verdict(50 * kGiB, 0) == Verdict::fault);
  CHECK(verdict(50 * kGiB, 1000) == Verdict::ok);
}

TEST_CASE("too few descriptors are a fault, unless the program may raise the limit") {
  CHECK(judge_descriptors(1024, 1 << 20, 8).verdict == Verdict::ok);
  CHECK(judge_descriptors(64, 64, 1).verdict == Verdict::fault);
  const DoctorRow raise = judge_descriptors(64, 4096, 1);
  CHECK(raise.verdict == Verdict::warning);
  CHECK(raise.hint == "ulimit -n 4096");
}

TEST_CASE("a clock that differs from the disk's is a fault") {
  constexpr double kNow = 1.8e9;
  CHECK(judge_clock(kNow, 0.1, true).verdict == Verdict::ok);
  CHECK(judge_clock(kNow, 3600, true).verdict == Verdict::fault);
  CHECK_THAT(judge_clock(kNow, 3600, true).value, Contains("3600 s earlier"));
  CHECK_THAT(judge_clock(kNow, -3600, true).value, Contains("3600 s later"));
  CHECK(judge_clock(1000, 0, true).verdict == Verdict::fault);
}

TEST_CASE("two ranks of this host reach each other in memory and over sockets") {
  for (const DoctorRow& row : examine_links()) {
    INFO(row.check << ": " << row.value);
    CHECK(row.verdict != Verdict::fault);
  }
}

}  // namespace run_doctor_test
