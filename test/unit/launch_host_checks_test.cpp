#include <sys/resource.h>
#include <chrono>
#include <cmath>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/disk_space.h"
#include "launch/host_checks.h"
#include "test/support/temporary_folder.h"

namespace launch_host_checks_test {

using namespace mtrain;
using namespace mtrain::launch;
using Catch::Matchers::Contains;
using Verdict = HostCheck::Verdict;

namespace {

constexpr int64_t kGiB = 1 << 30;
const HostFacts kGood{.gflops = 10,
                      .last_gflops = 11,
                      .memory_bytes = 64 * kGiB,
                      .disk_bytes = 100 * kGiB,
                      .shm_bytes = kGiB,
                      .descriptors = 4096,
                      .clock_skew_s = 0.02};

HostCheck check_of(const HostFacts& facts, const char* name, int ranks = 2) {
  for (const HostCheck& c : judge_host(facts, ranks))
    if (c.name == name) return c;
  FAIL(name);
  return {};
}

}  // namespace

TEST_CASE("each check has its verdict and a hint") {
  for (const HostCheck& c : judge_host(kGood, 2)) {
    CAPTURE(c.name);
    CHECK(c.verdict == Verdict::good);
    CHECK(c.hint.empty());
  }
  struct Row {
    const char* name;
    void (*change)(HostFacts&);
    Verdict verdict;
  };
  const Row rows[] = {{"GEMM of a core", [](HostFacts& f) { f.gflops = 7; }, Verdict::warn},
                      {"memory", [](HostFacts& f) { f.memory_bytes = kGiB / 2; }, Verdict::warn},
                      {"memory", [](HostFacts& f) { f.memory_bytes = kGiB / 16; }, Verdict::fault},
                      {"disk", [](HostFacts& f) { f.disk_bytes = kGiB / 2; }, Verdict::warn},
                      {"disk", [](HostFacts& f) { f.disk_bytes = 0; }, Verdict::fault},
                      {"disk", [](HostFacts& f) { f.disk_error = "read-only"; }, Verdict::fault},
                      {"/dev/shm", [](HostFacts& f) { f.shm_bytes = 4096; }, Verdict::warn},
                      {"open files", [](HostFacts& f) { f.descriptors = 64; }, Verdict::fault},
                      {"clock", [](HostFacts& f) { f.clock_skew_s = -3600; }, Verdict::warn},
                      {"clock", [](HostFacts& f) { f.clock_skew_s.reset(); }, Verdict::unknown},
                      {"memory", [](HostFacts& f) { f.memory_bytes = -1; }, Verdict::unknown},
                      {"open files", [](HostFacts& f) { f.descriptors = -1; }, Verdict::unknown}};
  for (const Row& row : rows) {
    HostFacts facts = kGood;
    row.change(facts);
    const HostCheck c = check_of(facts, row.name);
    CAPTURE(c.name, c.value);
    CHECK(c.verdict == row.verdict);
    CHECK(c.hint.empty() == (row.verdict == Verdict::unknown));
    CHECK(faults_of(judge_host(facts, 2)).size() == (row.verdict == Verdict::fault ? 1 : 0));
    CHECK(warnings_of(judge_host(facts, 2)).size() == (row.verdict == Verdict::warn ? 1 : 0));
  }
}

TEST_CASE("a core that stays slow is named at more than one start") {
  double kept = rate_to_keep(10, std::nullopt);
  CHECK(kept == 10);
  int named = 0;
  for (int start = 0; start < 20; ++start) {
    HostFacts facts = kGood;
    facts.gflops = 5, facts.last_gflops = kept;
    named += int(warnings_of(judge_host(facts, 1)).size());
    kept = rate_to_keep(5, kept);
  }
  CHECK(named == 4);  // 5 / 10, / 9, / 8.1 and / 7.29 are below 0.7
  CHECK(kept == 5);
  CHECK(rate_to_keep(12, 10) == 12);
}

TEST_CASE("a clock is compared with that of host 0, and the difference is in seconds") {
  const auto checks = compare_clocks(
      {{"a", 1e9}, {"b", 1e9 + 1.5}, {"c", 1e9 - 3600.25}, {"d", 1e9 + 2.5}, {"e", NAN}});
  REQUIRE(checks.size() == 4);
  CHECK(checks[0].name == "clock of b");
  CHECK((checks[0].verdict == Verdict::good && checks[0].hint.empty()));
  CHECK(checks[1].value == "3600.2 s earlier than that of a");
  CHECK(checks[2].value == "2.5 s later than that of a");
  for (size_t i = 1; i < 4; ++i) {
    CHECK(checks[i].verdict == Verdict::warn);
    CHECK_THAT(checks[i].hint, Contains("time service"));
  }
  CHECK(compare_clocks({{"a", 5}}).empty());
  CHECK(compare_clocks({}).empty());
}

TEST_CASE("a process that may raise its limit of open files is not refused") {
  rlimit before{}, after{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 64;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  const HostFacts facts = measure_host({.ranks = 1, .run_folder = {}, .rates = {}});
  raise_open_files(300);
  REQUIRE(getrlimit(RLIMIT_NOFILE, &after) == 0);
  CHECK(after.rlim_max == before.rlim_max);
  CHECK(after.rlim_cur == std::min<rlim_t>(before.rlim_max, 1024 + 96 + 4 * 300));
  raise_open_files(1);  // never lower
  rlimit same{};
  getrlimit(RLIMIT_NOFILE, &same);
  CHECK(same.rlim_cur == after.rlim_cur);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(facts.descriptors == int64_t(std::min<rlim_t>(before.rlim_max, int64_t{1} << 40)));
  HostFacts limited = kGood;
  limited.descriptors = 1024;
  CHECK(check_of(limited, "open files", 232).verdict == Verdict::good);
  CHECK(check_of(limited, "open files", 233).verdict == Verdict::fault);
}

TEST_CASE("a disk that has only the blocks of root left is not full for root") {
  struct statvfs info {};
  CHECK(free_disk_bytes(info, true) == -1);  // its space is not counted
  info.f_blocks = 1000;
  info.f_bfree = 50;
  info.f_frsize = 4096;
  CHECK(free_disk_bytes(info, true) == 50 * 4096);
  CHECK(free_disk_bytes(info, false) == 0);
}

TEST_CASE("this host is measured quickly, and its rate is compared with the last one") {
  const TemporaryFolder folder;
  const HostCheckOptions options{
      .ranks = 1, .run_folder = folder.path / "runs" / "new", .rates = folder.path / "c" / "rate"};
  const HostFacts first = measure_host(options), second = measure_host(options);
  CHECK(*first.gflops > 0);
  CHECK_FALSE(first.last_gflops);
  CHECK(*second.last_gflops == Approx(*first.gflops));
  CHECK(first.disk_error.empty());
  CHECK(first.disk_bytes > 0);
  CHECK(std::abs(*first.clock_skew_s) < 5);
  CHECK(std::filesystem::is_empty(folder.path / "c") == false);
  CHECK_FALSE(std::filesystem::exists(folder.path / "runs"));  // nothing is made
  HostFacts facts = kGood;
  facts.disk_error = "cannot write into /x: Read-only file system";
  const auto lines = faults_of(judge_host(facts, 1));
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Contains("disk: cannot write into /x: Read-only file system: choose"));
}

}  // namespace launch_host_checks_test
