// Layouts as choices of one value for each of several factors. Selects few choices that still
// combine all values.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

namespace train_testing {

// The index of the chosen value for each factor.
template <size_t N>
using Combination = std::array<int, N>;

// Calls f with every choice; `values` has the number of values of each factor.
template <size_t N, class F>
void for_each_choice(const Combination<N>& values, const F& f) {
  for (Combination<N> choice{};;) {
    f(choice);
    size_t i = 0;
    while (i < N && ++choice[i] == values[i]) choice[i++] = 0;
    if (i == N) return;
  }
}

// Returns a number for each combination of `together` values of different factors.
template <size_t N>
std::vector<size_t> sets_of(const Combination<N>& values, int together,
                            const Combination<N>& choice) {
  const auto all = size_t(std::accumulate(values.begin(), values.end(), 0));
  std::vector<size_t> sets;
  const auto extend = [&](const auto& self, size_t factor, size_t first, size_t set,
                          int left) -> void {
    if (left == 0) return sets.push_back(set);
    for (; factor < N; first += size_t(values[factor]), ++factor)
      self(self, factor + 1, first + size_t(values[factor]),
           set * all + first + size_t(choice[factor]), left - 1);
  };
  extend(extend, 0, 0, 0, together);
  return sets;
}

// Returns choices with worth(choice) that contain every combination of `together` values of
// different factors which any such choice has. The `first` choices come first. As long as a
// combination is missing, the choice with most missing combinations is added, and among these the
// one with the lowest cost(choice), which is below 100.
template <size_t N, class Worth, class Cost>
std::vector<Combination<N>> covering_choices(const Combination<N>& values, int together,
                                             std::vector<Combination<N>> first, const Worth& worth,
                                             const Cost& cost) {
  std::vector<Combination<N>> chosen = std::move(first), all;
  const auto numbers = size_t(std::accumulate(values.begin(), values.end(), 0));
  std::vector<char> missing(together == 2 ? numbers * numbers : numbers * numbers * numbers);
  for_each_choice(values, [&](const Combination<N>& choice) {
    if (!worth(choice)) return;
    all.push_back(choice);
    for (const size_t set : sets_of(values, together, choice)) missing[set] = true;
  });
  for (size_t i = 0;; ++i) {
    if (i == chosen.size()) {
      const auto gain = [&](const Combination<N>& choice) {
        int count = 0;
        for (const size_t set : sets_of(values, together, choice)) count += missing[set];
        return 100 * count - cost(choice);
      };
      chosen.push_back(*std::ranges::max_element(all, {}, gain));
    }
    REQUIRE(worth(chosen[i]));
    for (const size_t set : sets_of(values, together, chosen[i])) missing[set] = false;
    if (std::ranges::count(missing, true) == 0) return chosen;
  }
}

}  // namespace train_testing
