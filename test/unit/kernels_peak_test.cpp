// Tests the best of many short rounds, with a simulated clock and simulated rounds.
#include <catch2/catch.hpp>

#include "kernels/cpu/peak_rounds.h"

namespace kernels_peak_test {

using namespace mtrain::kernels::cpu;

namespace {

// Rounds of one thread, which take 1 ms for 1000 operations if nothing disturbs them.
struct Machine {
  double now = 0;
  int rounds = 0;
  double disturbed_until = 0;  // before this time a round takes twice as long
  Round run() {
    ++rounds;
    const double begin = now;
    now += begin < disturbed_until ? 2e-3 : 1e-3;
    return {{{.begin = begin, .end = now, .operations = 1000}}};
  }
  double best(RoundTimes times = {}) {
    return best_rate([&] { return run(); }, [&] { return now; }, times);
  }
};

}  // namespace

TEST_CASE("peak: rates are summed where all threads worked at the same time") {
  CHECK(best_rate_of({}) == 0);
  CHECK(best_rate_of({{}}) == 0);
  CHECK(best_rate_of({{{0, 2, 10}}}) == 5);
  CHECK(best_rate_of({{{0, 2, 10}}, {{2, 4, 10}}}) == 0);  // one after the other
  CHECK(best_rate_of({{{0, 2, 10}}, {}}) == 0);
  CHECK(best_rate_of({{{0, 4, 12}}, {{1, 4, 12}}}) == 3 + 4);
  CHECK(best_rate_of({{{1, 1, 12}}, {{1, 4, 12}}}) == 0);  // no clock is that coarse
  // The second thread is disturbed in its first burst, the first thread in its second.
  const std::vector<Burst> first = {{0, 1, 10}, {1, 3, 10}, {3, 4, 10}, {4, 5, 10}};
  const std::vector<Burst> second = {{0, 2, 8}, {2, 3, 8}, {3, 4, 8}};
  CHECK(best_rate_of({first, second}) == 10 + 8);
  // While one thread has a gap, no sum counts, however fast the other is.
  CHECK(best_rate_of({{{0, 1, 10}, {1, 2, 99}, {2, 3, 10}}, {{0, 1, 8}, {2, 3, 8}}}) == 18);
}

TEST_CASE("peak: the best round decides, however many are disturbed") {
  Machine quiet;
  CHECK(quiet.best() == Approx(1e6));
  CHECK(quiet.now == Approx(0.151).margin(2e-3));  // settled after the first round

  Machine busy_at_first{.disturbed_until = 0.1};
  CHECK(busy_at_first.best() == Approx(1e6));
  CHECK(busy_at_first.now == Approx(0.25).margin(5e-3));  // settled again after the better round

  Machine always_busy{.disturbed_until = 1e9};
  CHECK(always_busy.best() == Approx(5e5));
}

TEST_CASE("peak: rounds end though each is better than the one before") {
  double now = 0, operations = 1;
  const double best = best_rate(
      [&]() -> Round {
        const double begin = now;
        now += 1e-2;
        return {{{begin, now, operations *= 1.1}}};
      },
      [&] { return now; }, {.settled_s = 0.1, .limit_s = 0.5});
  CHECK(now == Approx(0.5).margin(0.02));
  CHECK(best == Approx(operations / 1e-2));
}

}  // namespace kernels_peak_test
