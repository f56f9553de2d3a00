#include "plan/sizing_guide.h"

#include <array>
#include <optional>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/strings.h"
#include "plan/device_text.h"
#include "plan/schedule_bounds.h"
#include "plan/size_settings.h"

namespace mtrain::plan {

namespace {

constexpr auto kDense = GuideRow::Models::dense, kExperts = GuideRow::Models::experts,
               kAll = GuideRow::Models::all;
constexpr double kB = 1e9;
constexpr int64_t kLong = 8192;

// Between 30B and 100B the guide has no row for models with experts.
constexpr std::array<GuideRow, 10> kGuide{{
    {.condition = "dense, below 3B", .models = kDense, .below = 3 * kB, .tp = {1, 1}, .pp = {1, 1}},
    {.condition = "dense, 3B to 13B",
     .models = kDense,
     .from = 3 * kB,
     .below = 13 * kB,
     .tp = {2, 4},
     .pp = {1, 1}},
    {.condition = "dense, 13B to 70B",
     .models = kDense,
     .from = 13 * kB,
     .below = 70 * kB,
     .tp = {4, 8},
     .pp = {2, 4}},
    {.condition = "dense, 70B and more",
     .models = kDense,
     .from = 70 * kB,
     .tp = {8, 8},
     .pp = {4, 8}},
    {.condition = "experts, below 10B",
     .models = kExperts,
     .below = 10 * kB,
     .tp = {1, 1},
     .pp = {1, 1},
     .ep = {8, 8}},
    {.condition = "experts, 10B to 30B",
     .models = kExperts,
     .from = 10 * kB,
     .below = 30 * kB,
     .tp = {1, 2},
     .pp = {1, 1},
     .ep = {8, 8}},
    {.condition = "experts, 100B and more",
     .models = kExperts,
     .from = 100 * kB,
     .tp = {1, 2},
     .pp = {4, kAnySize},
     .ep = {8, 64}},
    {.condition = "sequences below 8192", .length_below = kLong, .cp = {1, 1}},
    {.condition = "sequences of 8192 and more", .length_from = kLong, .cp = {2, 8}},
    {.condition = "all", .tp = {1, kNode}},
}};

// A smaller model only tries a layout out.
constexpr double kSmallest = 1e8;
// A pipeline that idles for a smaller part of a step is not worth a word: it sends less than the
// gathers of data parallelism.
constexpr double kIdle = 0.05;

struct GuidedSize {
  LayoutSize which;
  const char* name;
  int64_t size;     // of the plan
  SizeRange range;  // of the row
  bool below() const { return range.given() && size < range.low; }
  bool above() const { return range.given() && size > range.high; }
};

std::vector<GuidedSize> guided_sizes(const GuideRow& row, const Layout& l) {
  return {{LayoutSize::tp, "tp", l.tp, row.tp},
          {LayoutSize::pp, "pp", l.pp, row.pp},
          {LayoutSize::cp, "cp", l.cp, row.cp},
          {LayoutSize::ep, "ep", l.ep, row.ep}};
}

// Whether a size outside of the guide's range is worth advice.
bool matters(const GuidedSize& s, const RunPlan& plan, bool fits) {
  // Without ep, every rank gathers or holds the experts that other ranks have, too.
  if (s.below()) return !fits || s.which == LayoutSize::ep;
  if (!s.above()) return false;
  return s.which != LayoutSize::pp || bubble_fraction(plan.schedule_shape) >= kIdle;
}

// Returns the line of one row; nothing if it does not speak against the recipe.
std::optional<std::string> advice_of(const GuideRow& row, const RecipeSource& source,
                                     const Recipe& recipe, const RunPlan& plan) {
  const bool fits = memory_demand(recipe, plan).fits();
  std::vector<std::string> recommended, here;
  Change change;
  for (const GuidedSize& s : guided_sizes(row, plan.layout)) {
    if (!matters(s, plan, fits)) continue;
    const int64_t size = s.below() ? s.range.low : s.range.high;
    change.add({.settings = size_settings(recipe, s.which, size)});
    recommended.push_back(fmt::format("{} {}", s.name, s.range.text()));
    here.push_back(fmt::format("{} {}", s.name, s.size));
  }
  if (here.empty()) return std::nullopt;
  const auto trial = plan_trial(source, change, plan.model.vocab);
  if (!trial || trial->plan.device.kind != plan.device.kind) return std::nullopt;
  const MemoryDemand d = memory_demand(trial->recipe, trial->plan);
  if (!d.known() || !d.fits()) return std::nullopt;
  return fmt::format("{}: {} is usual, not {}; {} plans {}", row.condition,
                     fmt::join(recommended, ", "), fmt::join(here, ", "), change.words(),
                     human_bytes(d.bytes));
}

}  // namespace

std::string SizeRange::text() const {
  if (!given()) return "any";
  if (high == kNode) return "at most the GPUs of a node";
  if (high == kAnySize) return fmt::format("{} and more", low);
  return low == high ? fmt::format("{}", low) : fmt::format("{} to {}", low, high);
}

std::span<const GuideRow> sizing_guide() { return kGuide; }

bool applies(const GuideRow& row, const RunPlan& plan) {
  const double parameters = plan.parameters.total();
  const bool has_experts = plan.model.experts() != nullptr;
  return (row.models == kAll || has_experts == (row.models == kExperts)) &&
         parameters >= row.from && parameters < row.below &&
         plan.sample_length >= row.length_from && plan.sample_length < row.length_below;
}

std::string sizing_guide_table() {
  std::string text = "| model | tp | pp | cp | ep |\n|---|---|---|---|---|\n";
  for (const GuideRow& row : kGuide)
    text += fmt::format("| {} | {} | {} | {} | {} |\n", row.condition, row.tp.text(), row.pp.text(),
                        row.cp.text(), row.ep.text());
  return text;
}

std::vector<std::string> sizing_advice(const RecipeSource& source, const Recipe& recipe,
                                       const RunPlan& plan) {
  std::vector<std::string> lines;
  if (plan.device.kind != DeviceKind::cuda || plan.parameters.total() < kSmallest ||
      plan.layout.world == 1 || !memory_demand(recipe, plan).known())
    return lines;
  for (const GuideRow& row : kGuide)
    if (applies(row, plan))
      if (auto line = advice_of(row, source, recipe, plan)) lines.push_back(std::move(*line));
  return lines;
}

}  // namespace mtrain::plan
