#include <algorithm>
#include <cmath>
#include <random>

#include <catch2/catch.hpp>

#include "observe/stragglers.h"

namespace observe_stragglers_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Matchers::Contains;

namespace {

constexpr int kRanks = 16, kTimed = 5;  // steps that are timed between two checks

// A step of 100 ms with noise, and now and then a step of twice or ten times its length.
class Machine {
 public:
  Machine(uint64_t seed, double noise) : noise_(noise), random_(seed) {}
  double step() {
    double seconds = 0.1 * std::exp(noise_ * normal_(random_));
    if (uniform_(random_) < 0.02) seconds *= 2;
    if (uniform_(random_) < 0.005) seconds *= 10;
    return seconds;
  }

 private:
  const double noise_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
};

// The median of the timed steps, as a rank reports it.
double reported(Machine& machine, double slower) {
  std::vector<double> times;
  for (int i = 0; i < kTimed; ++i) times.push_back(slower * machine.step());
  std::ranges::sort(times);
  return times[kTimed / 2];
}

}  // namespace

TEST_CASE("10,000 steps on even ranks raise no alarm") {
  for (uint64_t seed = 1; seed <= 50; ++seed)
    for (const int ranks : {2, kRanks}) {
      Machine machine(seed, 0.08);
      StragglerFinder finder;
      for (int64_t step = 50; step <= 10'000; step += StragglerFinder::kEvery) {
        std::vector<RankWork> all;
        for (int r = 0; r < ranks; ++r) all.push_back({.step_s = reported(machine, 1)});
        CHECK(finder.look(all).found.empty());
      }
    }
}

TEST_CASE("a rank that takes 1.5 times as long is named within 150 steps, once") {
  for (uint64_t seed = 1; seed <= 50; ++seed)
    for (const int ranks : {2, kRanks}) {
      CAPTURE(seed, ranks);
      Machine machine(seed, 0.02);
      StragglerFinder finder;
      std::vector<int64_t> named;
      for (int64_t step = 50; step <= 500; step += StragglerFinder::kEvery) {
        std::vector<RankWork> all;
        for (int r = 0; r < ranks; ++r)
          all.push_back({.step_s = reported(machine, r == 1 ? 1.5 : 1), .host = "h"});
        for (const Straggler& s : finder.look(all).found) {
          CHECK(s.rank == 1);
          CHECK(s.ratio < 0.7);
          named.push_back(step);
        }
      }
      REQUIRE(!named.empty());
      CHECK(named[0] <= 150);
    }
}

TEST_CASE("ranks are compared with those of their stage, and the operation is the one in excess") {
  StragglerFinder finder;
  const auto rank = [](int group, double gemm, double norm) {
    return RankWork{.group = group,
                    .step_s = gemm + norm,
                    .host = "node3",
                    .operations = {{"matmul_fc1_fwd", gemm}, {"rmsnorm_fwd", norm}}};
  };
  // Stage 1 has half the work of stage 0; in stage 0 rank 2 is slow, in its norms alone.
  const std::vector<RankWork> all{rank(0, 8, 1),   rank(1, 4, 0.5), rank(0, 8, 6),
                                  rank(1, 4, 0.5), rank(0, 8, 1),   rank(2, 100, 1)};
  CHECK(finder.look(all).found.empty());  // once is not enough
  const StragglerFinder::Check second = finder.look(all);
  REQUIRE(second.found.size() == 1);
  CHECK(second.slowest->rank == 2);
  CHECK_THAT(second.found[0].str(), Contains("rank 2 on node3 computes at 0.64 of the speed") &&
                                        Contains("rmsnorm_fwd, 5e+03 ms more"));
  CHECK(finder.look(all).found.empty());  // it is named already
  std::vector<RankWork> even = all;
  even[2] = all[0];
  CHECK(finder.look(even).found.empty());
  finder.look(all);
  CHECK(finder.look(all).found.size() == 1);  // it had recovered
}

TEST_CASE("a rank's work travels as text") {
  const RankWork work{.group = 3,
                      .step_s = 0.125,
                      .host = "a-b.example",
                      .operations = {{"adamw", 0.25}, {"matmul_qkv_fwd", 1e-7}}};
  const RankWork back = parse_work(print_work(work));
  CHECK(back.group == 3);
  CHECK(back.step_s == 0.125);
  CHECK(back.host == "a-b.example");
  CHECK(back.operations == work.operations);
  CHECK(parse_work(print_work(RankWork{.step_s = 1})).operations.empty());
}

TEST_CASE("only the launches of steps that are compared count for an operation") {
  OperationTimes times;
  const auto record = [&](const char* name, int64_t ns) {
    times.record({name, device::StreamKind::compute, 0, ns});
  };
  for (int step = 0; step < 4; ++step) {
    record("matmul_fwd", 2'000'000);
    record("adamw", 1'000'000);
    times.end_step(step % 2 == 0);
    record("cross_entropy", 50'000'000);  // an evaluation
    times.end_step(false);
  }
  record("matmul_fwd", 9'000'000);  // its step has not ended
  const auto seconds = times.take(2);
  REQUIRE(seconds.size() == 2);
  CHECK(seconds.at("matmul_fwd") == Approx(2e-3));
  CHECK(seconds.at("adamw") == Approx(1e-3));
  CHECK(times.take(1).empty());
}

}  // namespace observe_stragglers_test
