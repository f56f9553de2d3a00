// The best rate that all threads reach together. Other processes take a core for milliseconds at a
// time, so that among bursts of a fifth of a millisecond some are undisturbed on all cores at once
// even while the machine is busy.
#pragma once
#include <functional>
#include <vector>

namespace mtrain::kernels::cpu {

// What one thread did without looking at the clock. Times are in seconds, of any clock.
struct Burst {
  double begin = 0, end = 0, operations = 0;
};
using Round = std::vector<std::vector<Burst>>;  // each thread's bursts, in their order

// Returns the highest sum, at any burst of the first thread, of the operations per second of all
// threads: each thread's rate is that of its burst at the middle of the first thread's. Where a
// thread has none, there is no sum: threads that work one after the other may each be faster than
// when they share a core or its power. 0: there is no sum anywhere.
double best_rate_of(const Round& round);

// Runs rounds until none was better by more than half a per cent for `settled_s`, but at most for
// `limit_s`, and returns the best rate. `now` is the clock in seconds.
struct RoundTimes {
  double settled_s = 0.15, limit_s = 0.6;
};
double best_rate(const std::function<Round()>& run_round, const std::function<double()>& now,
                 const RoundTimes& times = {});

}  // namespace mtrain::kernels::cpu
