// Tests the loads of experts under fixed patterns of choices.
#include "model/experts/route_pattern.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

namespace model_route_pattern_test {

using namespace mtrain;

namespace {

struct Sizes {
  int64_t T, E, K;
};
const std::vector<Sizes> kSizes{{1, 1, 1},   {7, 4, 4},    {48, 8, 2},  {60, 5, 3},
                                {96, 60, 4}, {64, 128, 8}, {512, 6, 5}, {256, 2048, 16}};

// Returns the number of choices of each expert among the tokens [begin, end).
std::vector<int64_t> loads(const std::vector<int32_t>& choices, const Sizes& s, int64_t begin,
                           int64_t end) {
  std::vector<int64_t> counts(static_cast<size_t>(s.E));
  for (int64_t i = begin * s.K; i < end * s.K; ++i) ++counts.at(size_t(choices[size_t(i)]));
  return counts;
}

}  // namespace

TEST_CASE("a pattern gives each token different experts, the same ones each time") {
  for (const RoutePattern pattern : {RoutePattern::balanced, RoutePattern::zipf})
    for (const Sizes& s : kSizes)
      for (const int64_t layer : {0, 3}) {
        CAPTURE(s.T, s.E, s.K, layer);
        const auto choices = model::pattern_choices(pattern, layer, s.T, s.E, s.K);
        REQUIRE(int64_t(choices.size()) == s.T * s.K);
        for (int64_t t = 0; t < s.T; ++t) {
          const std::set<int32_t> own(choices.begin() + t * s.K, choices.begin() + (t + 1) * s.K);
          REQUIRE(int64_t(own.size()) == s.K);
          REQUIRE((*own.begin() >= 0 && *own.rbegin() < s.E));
        }
        CHECK(choices == model::pattern_choices(pattern, layer, s.T, s.E, s.K));
      }
  // Layers differ, and so do the pairs of experts of a token.
  const auto of = [](int64_t layer) {
    return model::pattern_choices(RoutePattern::balanced, layer, 64, 8, 2);
  };
  CHECK(of(0) != of(1));
  std::set<std::pair<int32_t, int32_t>> pairs;
  const auto choices = of(0);
  for (size_t t = 0; t < 64; ++t) pairs.insert({choices[2 * t], choices[2 * t + 1]});
  CHECK(pairs.size() > 30);
}

TEST_CASE("balanced gives every expert as many choices, to within one") {
  for (const Sizes& s : kSizes) {
    CAPTURE(s.T, s.E, s.K);
    const auto counts =
        loads(model::pattern_choices(RoutePattern::balanced, 2, s.T, s.E, s.K), s, 0, s.T);
    const auto [least, most] = std::ranges::minmax(counts);
    CHECK(most - least <= (s.T * s.K % s.E == 0 ? 0 : 1));
  }
}

TEST_CASE("zipf gives expert e a load in proportion to 1 / (e + 1), in any run of tokens") {
  const Sizes s{4000, 8, 2};
  const auto choices = model::pattern_choices(RoutePattern::zipf, 1, s.T, s.E, s.K);
  double sum = 0;
  for (int64_t e = 0; e < s.E; ++e) sum += 1.0 / double(e + 1);
  for (const auto& [begin, end] :
       {std::pair<int64_t, int64_t>{0, 4000}, {100, 600}, {3000, 3300}}) {
    const auto counts = loads(choices, s, begin, end);
    for (int64_t e = 0; e < s.E; ++e) {
      const double want = double(end - begin) * 2 / sum / double(e + 1);
      CAPTURE(begin, end, e, want);
      CHECK(std::abs(double(counts[size_t(e)]) - want) <= 4);
    }
  }
  // A token chooses an expert once: the load of the first experts ends at the number of tokens.
  const Sizes many{1000, 16, 8};
  const auto counts =
      loads(model::pattern_choices(RoutePattern::zipf, 0, many.T, many.E, many.K), many, 0, many.T);
  CHECK(counts[0] == many.T);
  CHECK(counts[1] == many.T);
  CHECK(std::ranges::is_sorted(counts, std::greater()));
  // Loads below that number keep their proportion.
  CHECK(double(counts[7]) / double(counts[15]) == Approx(2).epsilon(0.02));
}

}  // namespace model_route_pattern_test
