#include "observe/compare_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/core.h>

#include "base/error.h"
#include "base/median.h"
#include "observe/metrics_reader.h"

namespace mtrain::observe {

namespace {

constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
constexpr const char *kStepTime = "step_ms", *kRate = "tokens_per_s", *kMemory = "memory_peak",
                     *kMostMemory = "memory_peak.max", *kValidationLoss = "validation_loss";

// Calls `use` for each step that both series have.
template <class Use>
void for_common_steps(const Series& a, const Series& b, const Use& use) {
  for (size_t i = 0, j = 0; i < a.steps.size() && j < b.steps.size();) {
    if (a.steps[i] == b.steps[j]) use(a.steps[i], a.values[i], b.values[j]);
    const int64_t step = std::min(a.steps[i], b.steps[j]);
    i += a.steps[i] == step;
    j += b.steps[j] == step;
  }
}

double difference_of(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return kAbsent;
  const double larger = std::max(std::abs(a), std::abs(b));
  return larger > 0 ? std::abs(a - b) / larger : 0;
}

KeyComparison compare_key(const std::string& key, const Series& a, const Series& b,
                          double tolerance) {
  KeyComparison result{
      .key = key, .in_a = int64_t(a.steps.size()), .in_b = int64_t(b.steps.size())};
  for_common_steps(a, b, [&](int64_t step, double of_a, double of_b) {
    const KeyComparison::At at{
        .step = step, .a = of_a, .b = of_b, .difference = difference_of(of_a, of_b)};
    ++result.compared;
    if (!result.first && !(at.difference <= tolerance)) result.first = at;
    if (std::isfinite(at.difference) &&
        (!result.largest || at.difference > result.largest->difference))
      result.largest = at;
  });
  return result;
}

FigureComparison compare_medians(const std::string& name, const char* key, const std::string& unit,
                                 const RunMetrics& a, const RunMetrics& b) {
  std::vector<double> of_a, of_b;
  for_common_steps(a.series(key), b.series(key), [&](int64_t, double in_a, double in_b) {
    if (!std::isfinite(in_a) || !std::isfinite(in_b)) return;
    of_a.push_back(in_a);
    of_b.push_back(in_b);
  });
  const bool any = !of_a.empty();
  return {.name = name,
          .key = key,
          .unit = unit,
          .a = any ? median(std::move(of_a)) : kAbsent,
          .b = any ? median(std::move(of_b)) : kAbsent};
}

double most(const Series& series) {
  double largest = kAbsent;
  for (const double value : series.values)
    if (std::isfinite(value) && !(value <= largest)) largest = value;
  return largest;
}

// Memory of the rank that needs most, or of rank 0 if a run does not have that of the others.
FigureComparison compare_memory(const RunMetrics& a, const RunMetrics& b) {
  const bool of_all = !a.series(kMostMemory).empty() && !b.series(kMostMemory).empty();
  const char* key = of_all ? kMostMemory : kMemory;
  return {.name = of_all ? "peak memory of a rank" : "peak memory of rank 0",
          .key = key,
          .unit = "GiB",
          .a = most(a.series(key)) / (1 << 30),
          .b = most(b.series(key)) / (1 << 30)};
}

std::string steps_text(const RunMetrics& run) {
  const Series& steps = run.series(kStepTime);
  return steps.empty() ? "no steps"
                       : fmt::format("steps {} to {}", steps.steps.front(), steps.steps.back());
}

}  // namespace

bool RunComparison::within() const {
  return std::ranges::none_of(keys, [](const KeyComparison& key) { return key.first.has_value(); });
}

RunComparison compare_runs(const std::filesystem::path& a_path, const std::filesystem::path& b_path,
                           std::vector<std::string> keys, double tolerance) {
  const bool by_default = keys.empty();
  if (by_default) keys = {"loss", kValidationLoss};
  std::vector<std::string> all = keys;
  all.insert(all.end(), {kStepTime, kRate, kMemory, kMostMemory});
  RunMetrics a(a_path, all), b(b_path, all);
  for (RunMetrics* run : {&a, &b}) {
    run->poll();
    warn_of_damage(run->stream());
    if (run->empty()) throw no_records(run->stream().path());
  }
  std::set<std::string, std::less<>> known = a.keys();
  known.insert(b.keys().begin(), b.keys().end());
  if (by_default && !known.contains(kValidationLoss)) keys.pop_back();
  RunComparison result{.tolerance = tolerance};
  for (const std::string& key : keys) {
    if (!known.contains(key)) throw unknown_key(key, known);
    result.keys.push_back(compare_key(key, a.series(key), b.series(key), tolerance));
    if (!by_default && result.keys.back().compared == 0)
      throw UserError(fmt::format("the runs have no step in common with `{}`", key),
                      "leave the key out, or compare runs that both have it");
    const auto count = [&](int64_t step, double, double) {
      if (result.first_step == 0 || step < result.first_step) result.first_step = step;
      result.last_step = std::max(result.last_step, step);
    };
    for_common_steps(a.series(key), b.series(key), count);
    result.common_steps = std::max(result.common_steps, result.keys.back().compared);
  }
  if (result.common_steps == 0)
    throw UserError(fmt::format("the runs have no step in common: {} has {}, and {} has {}",
                                a_path.string(), steps_text(a), b_path.string(), steps_text(b)),
                    "compare runs that have made the same steps");
  result.figures = {compare_medians("tokens/s", kRate, "", a, b),
                    compare_medians("time of a step", kStepTime, "ms", a, b), compare_memory(a, b)};
  return result;
}

}  // namespace mtrain::observe
