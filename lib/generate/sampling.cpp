#include "generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"

namespace mtrain::generate {

namespace {

// A draw from logits that are not finite would be meaningless.
void check_finite(std::span<const float> logits) {
  const auto bad = std::ranges::find_if_not(logits, [](float x) { return std::isfinite(x); });
  if (bad != logits.end())
    throw RunError(fmt::format("the model's logit of token {} is {}", bad - logits.begin(), *bad),
                   "a weight of the checkpoint is not finite, or a value overflows its type");
}

std::vector<double> penalized(std::span<const float> logits, std::span<const int32_t> before,
                              double penalty) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (penalty == 1) return scores;
  for (const int32_t id : std::set<int32_t>(before.begin(), before.end())) {
    double& score = scores.at(size_t(id));
    score = score < 0 ? score * penalty : score / penalty;
  }
  return scores;
}

// Returns the ids whose scores are at least the k-th largest, in any order.
std::vector<int32_t> top_ids(const std::vector<double>& scores, int64_t k) {
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (k <= 0 || k >= int64_t(ids.size())) return ids;
  std::vector<double> sorted = scores;
  std::ranges::nth_element(sorted, sorted.begin() + k - 1, std::greater<>());
  const double least = sorted[size_t(k - 1)];
  std::erase_if(ids, [&](int32_t id) { return scores[size_t(id)] < least; });
  return ids;
}

}  // namespace

void check(const SamplingOptions& o) {
  const struct {
    const char* name;
    double value, least, most;
  } rows[] = {{"temperature", o.temperature, 0, 1e6},
              {"top-p", o.top_p, 1e-6, 1},
              {"min-p", o.min_p, 0, 1},
              {"repetition-penalty", o.repetition_penalty, 1e-6, 1e6}};
  for (const auto& [name, value, least, most] : rows)
    if (!(value >= least && value <= most))  // NaN is in no range
      throw UserError(
          fmt::format("{} is {}, expected a number from {} to {}", name, value, least, most));
  if (o.top_k < 0) throw UserError(fmt::format("top-k is {}, expected 0 or more", o.top_k));
}

std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int32_t> before,
                                  const SamplingOptions& o) {
  check_finite(logits);
  const std::vector<double> scores = penalized(logits, before, o.repetition_penalty);
  if (o.temperature <= 0)
    return {{int32_t(std::ranges::max_element(scores) - scores.begin()), 1.0}};
  std::vector<int32_t> ids = top_ids(scores, o.top_k);
  std::ranges::sort(ids, [&](int32_t a, int32_t b) {
    const double x = scores[size_t(a)], y = scores[size_t(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<Candidate> kept;
  double sum = 0;
  for (const int32_t id : ids) {
    kept.push_back({id, std::exp((scores[size_t(id)] - scores[size_t(ids[0])]) / o.temperature)});
    sum += kept.back().probability;
  }
  // A token is kept if the more likely ones together have not reached top_p. The first one is
  // always kept.
  double likelier = 0, rest = 0;
  size_t n = 0;
  for (; n < kept.size(); ++n) {
    const double p = kept[n].probability;
    const bool enough = o.top_p < 1 && likelier >= o.top_p * sum;
    if (n > 0 && (enough || p < o.min_p)) break;  // the first one's p is 1
    likelier += p;
  }
  kept.resize(n);
  for (const Candidate& c : kept) rest += c.probability;
  for (Candidate& c : kept) c.probability /= rest;
  return kept;
}

int32_t pick(std::span<const Candidate> candidates, double number) {
  double below = 0;
  for (const Candidate& c : candidates)
    if (number < (below += c.probability)) return c.id;
  return candidates.back().id;  // the sum may round to less than 1
}

int32_t draw(std::span<const float> logits, std::span<const int32_t> before,
             const SamplingOptions& o, uint64_t sample, uint64_t index) {
  const std::vector<Candidate> from = candidates(logits, before, o);
  if (from.size() == 1) return from[0].id;
  const uint64_t key =
      rng_key(o.seed, sample == 0 ? "generate" : fmt::format("generate.{}", sample));
  return pick(from, double(uniform_below(key, index, 1ull << 53)) * 0x1p-53);
}

}  // namespace mtrain::generate
