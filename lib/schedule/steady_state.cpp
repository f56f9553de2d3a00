#include "schedule/steady_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"

namespace mtrain::schedule {

namespace {

constexpr double kSame = 1e-9;  // of a step, for two sums of the same times

// Calls f(a's figure, b's figure, ...) for each figure of the totals, which have the same ranks.
template <class F, class First, class... More>
void for_figures(const F& f, First& first, More&... more) {
  f(first.step, more.step...);
  for (size_t rank = 0; rank < first.busy.size(); ++rank) {
    f(first.busy[rank], more.busy[rank]...);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      f(first.sums[rank].busy[lane], more.sums[rank].busy[lane]...);
      f(first.sums[rank].exposed[lane], more.sums[rank].exposed[lane]...);
    }
  }
  f(first.paired.exchanges, more.paired.exchanges...);
  f(first.paired.exposed, more.paired.exposed...);
  f(first.unpaired.exchanges, more.unpaired.exchanges...);
  f(first.unpaired.exposed, more.unpaired.exposed...);
}

// Whether the actions of a period in the middle of the step are all the same time later than those
// one period before.
bool moves_evenly(const Schedule& s, const Timeline& t, int64_t period) {
  const int64_t from = (s.micro_batches - 2 * period) / 2;
  std::map<std::tuple<size_t, ActionKind, int64_t, int64_t>, double> ends;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank)
    for (size_t i = 0; i < s.ranks[rank].size(); ++i) {
      const Action& a = s.ranks[rank][i];
      const bool counts = is_compute(a.kind) || is_send(a.kind) || is_receive(a.kind);
      if (counts && a.micro_batch >= from && a.micro_batch < from + 2 * period)
        ends[{rank, a.kind, a.stage, a.micro_batch}] = t.times[rank][i].end;
    }
  double shift = -1;
  for (const auto& [action, end] : ends) {
    const auto& [rank, kind, stage, micro_batch] = action;
    if (micro_batch >= from + period) continue;
    const auto later = ends.find({rank, kind, stage, micro_batch + period});
    if (later == ends.end()) return false;
    const double by = later->second - end;
    if (shift < 0) shift = by;
    if (std::abs(by - shift) > kSame * t.step) return false;
  }
  return shift >= 0;
}

}  // namespace

double StepTotals::bubble() const {
  double computing = 0;
  for (const double b : busy) computing += b;
  return step > 0 ? 1 - computing / (step * double(busy.size())) : 0;
}

StepTotals totals_of(const Timeline& t) {
  return {
      .step = t.step, .busy = t.busy, .sums = t.sums, .paired = t.paired, .unpaired = t.unpaired};
}

namespace {

// Returns the totals; not extrapolated if the step does not repeat itself after the warm-up.
StepTotals extrapolate(const ListsOf& lists, int64_t micro_batches, int64_t first, int64_t period,
                       const ScheduleCosts& costs) {
  const int64_t last = first + 2 * period;
  const Schedule longest = lists(last);
  if (longest.ranks.empty()) return {};
  const Timeline timeline = simulate(longest, costs);
  if (!moves_evenly(longest, timeline, period)) return {};
  const auto play = [&](int64_t m) -> StepTotals {
    const Schedule s = lists(m);
    return s.ranks.empty() ? StepTotals{} : totals_of(simulate(s, costs));
  };
  const StepTotals a = play(first), b = play(first + period), c = totals_of(timeline);
  if (a.busy.empty() || b.busy.empty()) return {};
  bool repeats = true;
  for_figures([&](double x, double y,
                  double z) { repeats = repeats && std::abs((z - y) - (y - x)) <= kSame * c.step; },
              a, b, c);
  if (!repeats) return {};
  StepTotals all = c;
  const int64_t whole = (micro_batches - last) / period;
  const auto periods = double(whole);
  for_figures([&](double& x, double y, double z) { x = z + periods * (z - y); }, all, b, c);
  all.extrapolated = true;
  return all;
}

}  // namespace

StepTotals simulate_step(const ListsOf& lists, int64_t micro_batches, int64_t warmup,
                         int64_t period, const ScheduleCosts& costs) {
  MT_CHECK(period > 0 && warmup >= 0, "a period of {}, a warm-up of {}", period, warmup);
  for (;; warmup = std::max(2 * warmup, period)) {
    // The shorter steps leave the same remainder as all micro-batches.
    const int64_t first = warmup + (micro_batches % period - warmup % period + period) % period;
    if (3 * (first + period) >= micro_batches) break;
    if (StepTotals t = extrapolate(lists, micro_batches, first, period, costs); t.extrapolated)
      return t;
  }
  return totals_of(simulate(lists(micro_batches), costs));
}

}  // namespace mtrain::schedule
