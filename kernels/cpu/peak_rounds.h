// The best rate that all threads reach together. Other processes take a core for milliseconds at a
// time. Bursts last a fifth of a millisecond, so some are undisturbed on all cores at once even on
// a busy machine.
#pragma once
#include <functional>
#include <vector>

namespace mtrain::kernels::cpu {

// The work of one thread between two readings of the clock. Times are in seconds, of any clock.
struct Burst {
  double begin = 0, end = 0, operations = 0;
};
using Round = std::vector<std::vector<Burst>>;  // each thread's bursts, in their order

// Returns the highest rate of all threads together, in operations per second. For each burst of the
// first thread, it adds the rates of the other threads' bursts at the middle of that burst. If a
// thread has no burst there, the sum does not count: threads that work one after the other may each
// be faster than threads that share a core or its power. Returns 0 if no sum counts.
double best_rate_of(const Round& round);

// Runs rounds until none has improved the rate by more than half a percent for `settled_s`, but at
// most for `limit_s`, and returns the best rate. `now` is the clock in seconds.
struct RoundTimes {
  double settled_s = 0.15, limit_s = 0.6;
};
double best_rate(const std::function<Round()>& run_round, const std::function<double()>& now,
                 const RoundTimes& times = {});

}  // namespace mtrain::kernels::cpu
