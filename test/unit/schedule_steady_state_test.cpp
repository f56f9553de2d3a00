#include <catch2/catch.hpp>

#include <random>

#include "base/error.h"
#include "schedule/catalog.h"
#include "schedule/lower.h"
#include "schedule/steady_state.h"

namespace schedule_steady_state_test {

using namespace mtrain;
using namespace mtrain::schedule;

namespace {

ListsOf lists_of(const ScheduleKind& kind, ScheduleSize size, const Lowering& how) {
  return [&kind, size, how](int64_t micro_batches) mutable -> Schedule {
    size.micro_batches = micro_batches;
    try {
      return executed(make_schedule(kind, size), how);
    } catch (const UserError&) {
      return {.ranks = {}};
    }
  };
}

}  // namespace

TEST_CASE("steps of many micro-batches are extrapolated within a thousandth of all of them") {
  std::mt19937 random(7);
  const auto any = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  const auto time = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  int extrapolated = 0, cases = 0;
  double worst = 0;
  while (cases < 200) {
    const auto& kinds = schedule_kinds();
    const ScheduleKind& kind = kinds[size_t(any(0, int64_t(kinds.size()) - 1))];
    const int64_t pp = any(2, 6),
                  stages = std::min<int64_t>(kind.max_stages, kind.min_stages + any(0, 1));
    const int64_t m = pp * any(4, 40) + (kind.in_groups ? 0 : any(0, pp - 1));
    ScheduleSize size{.pp = pp, .stages_per_rank = stages, .micro_batches = m};
    const Lowering how{.overlap = any(0, 3) > 0, .max_gathered = any(0, 2) > 0 ? 0 : 3};
    const ListsOf lists = lists_of(kind, size, how);
    const Schedule full = lists(m);
    if (full.ranks.empty()) continue;
    ScheduleCosts costs;
    costs.overlap_p2p = how.overlap;
    costs.stages.clear();
    for (int64_t s = 0; s < full.stages; ++s)
      costs.stages.push_back({.F = time(0.8, 1.2),
                              .I = time(0.8, 1.5),
                              .W = time(0.5, 1.2),
                              .gather = time(0, 0.5),
                              .reduce = time(0, 3)});
    costs.p2p_transfer = any(0, 2) > 0 ? time(0, 0.4) : 0;
    costs.p2p_latency = any(0, 2) > 0 ? time(0, 0.2) : 0;
    costs.one_link = any(0, 1) > 0;
    const StepTotals fast = simulate_step(lists, m, 2 * pp * stages, pp, costs),
                     slow = totals_of(simulate(full, costs));
    INFO(kind.name << " pp " << pp << " stages " << stages << " micro-batches " << m << " overlap "
                   << how.overlap << " gathered " << how.max_gathered);
    CHECK(fast.step == Approx(slow.step).epsilon(1e-3));
    for (size_t rank = 0; rank < slow.busy.size(); ++rank)
      CHECK(fast.busy[rank] == Approx(slow.busy[rank]).epsilon(1e-3));
    worst = std::max(worst, std::abs(fast.step / slow.step - 1));
    extrapolated += fast.extrapolated;
    ++cases;
  }
  WARN(extrapolated << " of 200 steps are extrapolated; the worst is off by " << 100 * worst
                    << " %");
  CHECK(extrapolated >= 40);  // those with enough micro-batches whose periods are alike
}

TEST_CASE("a step that does not repeat itself is simulated in full") {
  // From 40 micro-batches on, a rank computes them in another order.
  const ScheduleKind& a = schedule_named("1f1b");
  const ScheduleKind& b = schedule_named("gpipe");
  const ListsOf lists = [&](int64_t m) {
    return with_messages(make_schedule(m % 8 ? a : b, {4, 1, m}));
  };
  const ScheduleCosts costs{.p2p_latency = 0.5};
  const StepTotals t = simulate_step(lists, 200, 8, 4, costs);
  CHECK_FALSE(t.extrapolated);
  CHECK(t.step == simulate(lists(200), costs).step);
  // Few micro-batches are not worth it.
  CHECK_FALSE(simulate_step(lists_of(a, {4, 1, 8}, {}), 8, 8, 4, costs).extrapolated);
  // A number that the schedule refuses is not extrapolated from.
  const ListsOf only = [&](int64_t m) {
    return m == 200 ? with_messages(make_schedule(a, {4, 1, m})) : Schedule{.ranks = {}};
  };
  CHECK_FALSE(simulate_step(only, 200, 8, 4, costs).extrapolated);
}

}  // namespace schedule_steady_state_test
