#include "kernels/cpu/peak_rounds.h"

#include <algorithm>
#include <iterator>

namespace mtrain::kernels::cpu {

namespace {

double rate(const Burst& b) { return b.end > b.begin ? b.operations / (b.end - b.begin) : 0; }

// Returns the thread's rate at the moment, 0 if it had no burst then.
double rate_at(const std::vector<Burst>& thread, double moment) {
  const auto after = std::ranges::upper_bound(thread, moment, {}, &Burst::begin);
  if (after == thread.begin()) return 0;
  const Burst& b = *std::prev(after);
  return moment < b.end ? rate(b) : 0;
}

}  // namespace

double best_rate_of(const Round& round) {
  if (round.empty()) return 0;
  double best = 0;
  for (const Burst& first : round[0]) {
    const double middle = (first.begin + first.end) / 2;
    double sum = rate(first);
    bool all = sum > 0;
    for (size_t t = 1; t < round.size() && all; ++t) {
      const double other = rate_at(round[t], middle);
      sum += other;
      all = other > 0;
    }
    if (all) best = std::max(best, sum);
  }
  return best;
}

double best_rate(const std::function<Round()>& run_round, const std::function<double()>& now,
                 const RoundTimes& times) {
  constexpr double kBetter = 1.005;
  const double start = now();
  double best = 0, settled_since = start;
  for (double t = start; t - start < times.limit_s && t - settled_since < times.settled_s;
       t = now()) {
    const double measured = best_rate_of(run_round());
    if (measured > kBetter * best) settled_since = now();
    best = std::max(best, measured);
  }
  return best;
}

}  // namespace mtrain::kernels::cpu
