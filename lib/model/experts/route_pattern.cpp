#include "model/experts/route_pattern.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace mtrain::model {

namespace {

// Deals the experts out in one random order after another.
std::vector<int32_t> balanced_choices(int64_t layer, int64_t T, int64_t E, int64_t K) {
  std::vector<int32_t> choices(size_t(T * K)), order(static_cast<size_t>(E));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = 0; i < T * K; ++i) {
    const int64_t dealt = i % E;
    if (dealt == 0)
      for (int64_t e = E - 1; e > 0; --e)
        std::swap(order[size_t(e)],
                  order[uniform_below(uint64_t(layer), uint64_t(i + e), uint64_t(e + 1))]);
    // A token whose choices come from two orders takes the next expert that it does not have.
    const auto own = choices.begin() + i / K * K, end = choices.begin() + i;
    const auto next = std::find_if(order.begin() + dealt, order.end(),
                                   [&](int32_t e) { return std::find(own, end, e) == end; });
    MT_CHECK(next != order.end(), "token {} has no expert left of {}", i / K, E);
    std::iter_swap(order.begin() + dealt, next);
    choices[size_t(i)] = order[size_t(dealt)];
  }
  return choices;
}

// Returns where each expert's share of [0, K) ends. Expert e has the share min(1, c / (e + 1)), the
// fraction of tokens that choose it; c makes the shares add up to K.
std::vector<double> zipf_sums(int64_t E, int64_t K) {
  double rest = 0, c = 0;
  for (int64_t e = 0; e < E; ++e) rest += 1.0 / double(e + 1);
  int64_t always = 0;  // experts that every token chooses
  for (; always < K; ++always) {
    c = double(K - always) / rest;
    if (c <= double(always + 1)) break;
    rest -= 1.0 / double(always + 1);
  }
  std::vector<double> sums;
  double sum = 0;
  for (int64_t e = 0; e < E; ++e)
    sums.push_back(sum += e < always ? 1.0 : std::min(1.0, c / double(e + 1)));
  return sums;
}

// The experts' shares lie one after the other on [0, K). A token with the number u chooses the
// experts in whose shares u, u + 1, ..., u + K - 1 lie. Multiples of the golden ratio spread the u
// of any run of tokens evenly over [0, 1).
std::vector<int32_t> zipf_choices(int64_t layer, int64_t T, int64_t E, int64_t K) {
  const std::vector<double> sums = zipf_sums(E, K);
  std::vector<int32_t> choices;
  choices.reserve(size_t(T * K));
  for (int64_t t = 0; t < T; ++t) {
    const double turns = 0.6180339887498949 * double(t + layer + 1), u = turns - std::floor(turns);
    int64_t last = -1;
    for (int64_t k = 0; k < K; ++k) {
      const int64_t e = std::upper_bound(sums.begin(), sums.end(), u + double(k)) - sums.begin();
      // Rounding at the end of a part changes neither that experts differ nor that there are K.
      last = std::clamp(e, last + 1, E - K + k);
      choices.push_back(int32_t(last));
    }
  }
  return choices;
}

}  // namespace

std::vector<int32_t> pattern_choices(RoutePattern pattern, int64_t layer, int64_t T, int64_t E,
                                     int64_t K) {
  MT_CHECK(K >= 1 && K <= E, "{} of {} experts", K, E);
  switch (pattern) {
    case RoutePattern::balanced: return balanced_choices(layer, T, E, K);
    case RoutePattern::zipf: return zipf_choices(layer, T, E, K);
    case RoutePattern::none: break;
  }
  throw BugError("choices of no pattern");
}

}  // namespace mtrain::model
