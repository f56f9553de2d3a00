// Draws follow the exact probabilities, which the tests compute independently.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "generate/sampling.h"

namespace generate_sampling_test {

using namespace mtrain;
using generate::SamplingOptions;

namespace {

std::vector<float> some_logits(int64_t count, uint64_t key, float std = 2) {
  std::vector<float> logits(static_cast<size_t>(count));
  fill_normal(key, 0, count, std, logits.data());
  return logits;
}

// The definition, token by token: each processor of transformers sets the scores that it refuses to
// -inf, and the next one sees the others.
std::vector<double> exact(const std::vector<float>& logits, const std::vector<int32_t>& before,
                          const SamplingOptions& o) {
  const double kOut = -INFINITY;
  std::vector<double> score(logits.begin(), logits.end());
  const auto softmax = [&] {
    std::vector<double> p;
    const double top = *std::ranges::max_element(score);
    for (double s : score) p.push_back(std::exp(s - top));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  };
  for (size_t id = 0; id < score.size(); ++id)
    if (std::ranges::count(before, int32_t(id)))
      score[id] *= score[id] < 0 ? o.repetition_penalty : 1 / o.repetition_penalty;
  for (double& s : score) s /= o.temperature;
  if (o.top_k > 0 && o.top_k < int64_t(score.size())) {
    std::vector<double> sorted = score;
    std::ranges::sort(sorted, std::greater<>());
    for (double& s : score)
      if (s < sorted[size_t(o.top_k - 1)]) s = kOut;
  }
  if (o.top_p < 1) {
    const auto p = softmax();
    const auto before_top_p = score;
    for (size_t id = 0; id < score.size(); ++id) {
      double likelier = 0;
      for (size_t other = 0; other < p.size(); ++other)
        if (p[other] > p[id] || (p[other] == p[id] && other < id)) likelier += p[other];
      if (likelier >= o.top_p && likelier > 0) score[id] = kOut;
    }
  }
  if (o.min_p > 0) {
    const auto p = softmax();
    const double least = o.min_p * *std::ranges::max_element(p);
    for (size_t id = 0; id < score.size(); ++id)
      if (p[id] < least) score[id] = kOut;
  }
  return softmax();
}

// Returns the chance of a statistic at least as large: Wilson and Hilferty's approximation (1931),
// by which the cube root of chi-square / degrees is normal.
double chi_square_tail(double statistic, double degrees) {
  const double spread = 2 / (9 * degrees);
  const double z = (std::cbrt(statistic / degrees) - (1 - spread)) / std::sqrt(spread);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

// Draws many times and compares the frequency of each token with its probability.
double chance_of(const std::vector<float>& logits, const std::vector<int32_t>& before,
                 const SamplingOptions& o, const std::vector<double>& p, uint64_t sample) {
  constexpr int kDraws = 20000;
  std::vector<int64_t> seen(p.size());
  for (int i = 0; i < kDraws; ++i)
    ++seen[size_t(generate::draw(logits, before, o, sample, uint64_t(i)))];
  double statistic = 0, cells = 0, rare_expected = 0, rare_seen = 0;
  for (size_t id = 0; id < p.size(); ++id) {
    if (p[id] == 0) REQUIRE(seen[id] == 0);
    const double expected = p[id] * kDraws;
    if (expected < 5) {  // cells with fewer are merged
      rare_expected += expected, rare_seen += double(seen[id]);
      continue;
    }
    statistic += std::pow(double(seen[id]) - expected, 2) / expected;
    ++cells;
  }
  if (rare_expected > 5) {
    statistic += std::pow(rare_seen - rare_expected, 2) / rare_expected;
    ++cells;
  }
  return cells < 2 ? 1 : chi_square_tail(statistic, cells - 1);
}

const std::vector<SamplingOptions> kOptions{
    {.temperature = 1, .top_k = 0},
    {.temperature = 0.7, .top_k = 0},
    {.temperature = 1.5, .top_k = 10},
    {.temperature = 1, .top_k = 0, .top_p = 0.8},
    {.temperature = 1, .top_k = 0, .top_p = 0.05},
    {.temperature = 1, .top_k = 0, .min_p = 0.1},
    {.temperature = 1, .top_k = 0, .repetition_penalty = 1.7},
    {.temperature = 0.9, .top_k = 20, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.3},
    {.temperature = 2, .top_k = 7, .top_p = 0.6, .min_p = 0.3, .repetition_penalty = 0.5}};

}  // namespace

TEST_CASE("candidates have the exact probabilities of every combination of options") {
  const std::vector<int32_t> before{3, 8, 8, 21, 30};
  for (const SamplingOptions& o : kOptions)
    for (uint64_t key = 0; key < 20; ++key) {
      const auto logits = some_logits(50, key);
      const auto want = exact(logits, before, o);
      const auto got = generate::candidates(logits, before, o);
      CAPTURE(o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty, key);
      REQUIRE(std::ranges::is_sorted(got, std::greater<>(), &generate::Candidate::probability));
      std::vector<double> all(want.size());
      for (const auto& c : got) all[size_t(c.id)] = c.probability;
      for (size_t id = 0; id < want.size(); ++id)
        REQUIRE(all[id] == Approx(want[id]).epsilon(1e-9).margin(1e-15));
    }
}

TEST_CASE("draws follow the probabilities, by chi-square") {
  const std::vector<int32_t> before{3, 8, 21};
  int tests = 0, unlikely = 0;
  for (const SamplingOptions& o : kOptions)
    for (uint64_t sample : {0, 1, 2}) {
      const auto logits = some_logits(50, 100 + sample);
      const double chance = chance_of(logits, before, o, exact(logits, before, o), sample);
      CAPTURE(o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty, sample);
      CHECK(chance > 1e-4);
      ++tests, unlikely += chance < 0.05;
    }
  CHECK(unlikely <= 5);  // 27 cases; 1.4 are expected
}

TEST_CASE("chi-square finds draws of another distribution") {
  const auto logits = some_logits(50, 1);
  const SamplingOptions drawn{.temperature = 1, .top_k = 0};
  CHECK(chance_of(logits, {}, drawn, exact(logits, {}, {.temperature = 1.1, .top_k = 0}), 0) <
        1e-6);
  CHECK(chi_square_tail(18.307, 10) == Approx(0.05).epsilon(0.02));  // the tables' value
  CHECK(chi_square_tail(29.588, 10) == Approx(0.001).epsilon(0.1));
}

TEST_CASE("temperature 0 takes the likeliest token, after the repetition penalty") {
  const std::vector<float> logits{1, 5, 4.5, -1, 5};
  const auto greedy = [&](const std::vector<int32_t>& before, double penalty) {
    return generate::draw(logits, before, {.temperature = 0, .repetition_penalty = penalty}, 0, 0);
  };
  CHECK(greedy({}, 1) == 1);  // the first of equal ones
  CHECK(greedy({1}, 1) == 1);
  CHECK(greedy({1}, 1.2) == 4);
  CHECK(greedy({1, 4}, 1.2) == 2);
}

TEST_CASE("nothing is drawn from logits that are NaN") {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const double temperature : {0.0, 1.0}) {
      const std::vector<float> logits{1, 2, bad, 3};
      CHECK_THROWS_AS(generate::candidates(logits, {}, {.temperature = temperature}), RunError);
      CHECK_THROWS_WITH(generate::candidates(logits, {}, {.temperature = temperature}),
                        Catch::Matchers::Contains("token 2"));
    }
}

TEST_CASE("options that no draw can follow are refused by name") {
  CHECK_NOTHROW(generate::check({}));
  CHECK_NOTHROW(generate::check({.temperature = 0, .top_k = 0, .top_p = 1e-6, .min_p = 1}));
  const auto refuses = [](const generate::SamplingOptions& o, const char* name) {
    CHECK_THROWS_AS(generate::check(o), UserError);
    CHECK_THROWS_WITH(generate::check(o), Catch::Matchers::Contains(name));
  };
  for (const double bad : {double(NAN), -double(NAN), double(INFINITY), -double(INFINITY), -0.5}) {
    refuses({.temperature = bad}, "temperature");
    refuses({.top_p = bad}, "top-p");
    refuses({.min_p = bad}, "min-p");
    refuses({.repetition_penalty = bad}, "repetition-penalty");
  }
  refuses({.top_k = -1}, "top-k");
  refuses({.top_p = 0}, "top-p");
  refuses({.repetition_penalty = 0}, "repetition-penalty");
}

TEST_CASE("equal logits at the end of top-k all stay, and a number picks by its place") {
  const std::vector<float> logits{2, 1, 1, 0};
  const auto two = generate::candidates(logits, {}, {.temperature = 1, .top_k = 2});
  REQUIRE(two.size() == 3);
  CHECK((two[0].id == 0 && two[1].id == 1 && two[2].id == 2));
  const std::vector<generate::Candidate> from{{7, 0.5}, {9, 0.25}, {2, 0.25}};
  CHECK(generate::pick(from, 0) == 7);
  CHECK(generate::pick(from, 0.4999) == 7);
  CHECK(generate::pick(from, 0.5) == 9);
  CHECK(generate::pick(from, 0.75) == 2);
  CHECK(generate::pick(from, 0.9999999999) == 2);
}

TEST_CASE("a draw depends on seed, stream and index") {
  const auto logits = some_logits(1000, 5, 0.1f);
  const auto at = [&](uint64_t seed, uint64_t sample, uint64_t index) {
    return generate::draw(logits, {}, {.temperature = 1, .top_k = 0, .seed = seed}, sample, index);
  };
  CHECK(at(1, 0, 0) == at(1, 0, 0));
  std::map<int32_t, int> ids;
  for (uint64_t i = 0; i < 3; ++i) ++ids[at(1, 0, i)], ++ids[at(1, 1, i)], ++ids[at(2, 0, i)];
  CHECK(ids.size() >= 8);
}

}  // namespace generate_sampling_test
