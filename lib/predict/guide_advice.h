// Compares the sizing guide (plan/sizing_guide.h) with predictions of a recipe on a cluster.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_name.h"
#include "plan/sizing_guide.h"
#include "predict/layout_search.h"

namespace mtrain::predict {

// What a search has found on one side of a row's range.
struct GuideSide {
  std::optional<RankedLayout> best;  // absent: no layout is possible or fits the memory
  std::vector<LayoutsOut> out;       // why, most first
  // Layouts that were not predicted, and the lowest bound of their times in seconds.
  size_t left = 0;
  double lowest_left = 0;
};

enum class GuideVerdict {
  agrees,     // the best layout within the range is as fast as the best one outside, or faster
  disagrees,  // it is slower by more than kNearTie, or does not exist
  open        // neither side has a layout
};
constexpr auto enum_names(GuideVerdict) {
  using V = GuideVerdict;
  return std::array{EnumName{V::agrees, "agrees"}, EnumName{V::disagrees, "disagrees"},
                    EnumName{V::open, "open"}};
}

struct RowAdvice {
  const plan::GuideRow* row = nullptr;
  std::string range;  // "tp 2 to 4, pp 1"
  bool recipe_within = false;
  GuideSide within, outside;
  GuideVerdict verdict = GuideVerdict::open;
  // Whether no layout that was left out of the searches can change the verdict.
  bool proven = true;
};

struct GuideAdvice {
  std::vector<RowAdvice> rows;                // those for the recipe's model and its sequences
  std::vector<const plan::GuideRow*> others;  // those for other ones
  std::optional<RankedLayout> own;            // the recipe; absent if it does not fit
  // The fastest layout of all rows. Its groups of tp are within a domain.
  std::optional<RankedLayout> best;
  Band band;
};

// Whether a layout's sizes are in the row's ranges. The GPUs of a node are those of a domain.
bool is_within(const plan::GuideRow& row, const LayoutChoice& choice, int64_t domain);

// Searches the best layouts within and outside of each row. `search` has the fields that may
// change, and how many layouts each of these searches predicts at most. Searches do not leave a
// domain with tp; for the row that forbids it, the layout outside has twice a domain's ranks, to
// compare the times.
GuideAdvice guide_advice(const plan::RecipeSource& source, const Recipe& recipe,
                         const RunPlan& plan, const plan::Cluster& cluster,
                         const LaunchCosts& costs, const LayoutSearch& search);

// Returns a paragraph for each row. `width` 0: lines have no limit.
std::string guide_advice_text(const GuideAdvice& advice, const RunPlan& plan,
                              const plan::Cluster& cluster, int width);

}  // namespace mtrain::predict
