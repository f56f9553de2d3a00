// How the algorithms of a GEMM are measured. All of them are compared in a few calls each; the best
// of these are then measured in turns, so that a change of the GPU's clock meets them all. This
// header includes no CUDA header.
//
// In a training most operands of a GEMM come from memory: other kernels have used the L2 cache
// since they were written. Calls of a measurement therefore use several sets of operands in turn.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/math.h"

namespace mtrain::kernels::cuda {

// A kind of GEMM that takes t runs 32 (1 + 3) + 4 * 3 * 10 = 248 times, or less if 3 or 10 calls
// take longer than kEnoughSeconds: 25 ms for t = 0.1 ms, 188 ms for 1 ms, 380 ms for 5 ms.
struct GemmTiming {
  static constexpr int kAlgorithms = 32;  // how many to request for a key
  static constexpr int kFirstCalls = 3;   // of each algorithm, after one that loads its code
  static constexpr int kFinalists = 4, kRounds = 3, kFinalCalls = 10;
  static constexpr double kEnoughSeconds = 5e-3;  // more calls make a measurement no better
};

// Returns how many calls of that duration one measurement takes.
constexpr int calls_at_once(double seconds, int most) {
  const double calls = GemmTiming::kEnoughSeconds / seconds;
  return calls >= most ? most : std::max(1, int(calls));
}

// Returns how many sets of operands of `bytes` are used in turn: between two uses of a set, the
// others fill the cache. The sets of the smallest GEMMs do not; memory for those has many pieces.
constexpr int64_t sets_in_turn(int64_t bytes, int64_t cache_bytes) {
  constexpr int64_t kMost = 64;
  if (bytes <= 0 || bytes >= 2 * cache_bytes) return 1;  // a set displaces itself
  return std::min(kMost, 1 + ceil_div(cache_bytes, bytes));
}

// An algorithm that has refused the call.
inline constexpr double kRefused = std::numeric_limits<double>::infinity();

// Returns the algorithms to measure again, by their places: the first that has not refused, which
// the library prefers, and the fastest of the others. Of two equal ones the first comes first.
inline std::vector<size_t> finalists(const std::vector<double>& seconds) {
  std::vector<size_t> order;
  for (size_t i = 0; i < seconds.size(); ++i)
    if (seconds[i] < kRefused) order.push_back(i);
  if (order.empty()) return order;
  std::stable_sort(order.begin() + 1, order.end(),
                   [&](size_t a, size_t b) { return seconds[a] < seconds[b]; });
  if (order.size() > size_t(GemmTiming::kFinalists)) order.resize(GemmTiming::kFinalists);
  return order;
}

}  // namespace mtrain::kernels::cuda
