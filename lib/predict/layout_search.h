// Ranks the layouts of a recipe on a cluster by what their steps are predicted to take.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/layout_space.h"
#include "plan/plan_trial.h"
#include "predict/prediction.h"

namespace mtrain::predict {

using plan::LayoutChoice;
using plan::LayoutField;
using plan::LayoutSpace;
using plan::SearchFields;

enum class Objective { speed, memory };  // of a step's time, or of the fullest device's memory

struct LayoutSearch {
  SearchFields fields = SearchFields::all();
  Objective objective = Objective::speed;
  size_t top = 10;
  size_t most_plays = 30;  // layouts that are predicted in full, the recipe's own not counted
  // Predicts a plan's step; a StepModel unless set.
  std::function<Prediction(const RunPlan&)> play = {};
};

struct RankedLayout {
  LayoutChoice choice;
  plan::Change change;
  int64_t dp = 1;
  double step_s = 0, tokens_per_s = 0, mfu = 0;
  double memory = 0;  // bytes of the fullest device
};

// Layouts that are out for one reason.
struct LayoutsOut {
  std::string reason;
  size_t count = 0;
  std::string nearest, detail;  // the layout closest to the recipe, and what is wrong with it
};

struct LayoutRanking {
  size_t candidates = 0;             // all combinations that were looked at
  size_t legal = 0;                  // those that divide and that no rule refuses
  size_t played = 0;                 // predicted in full
  std::vector<RankedLayout> ranked;  // best first; sizes tp, pp, cp and ep differ if one is free
  // The played layouts that no other one beats in time and in memory, with the fastest first.
  std::vector<RankedLayout> front;
  std::optional<RankedLayout> own;  // the recipe; absent if it does not fit
  std::vector<LayoutsOut> out;      // most first
  // Layouts that may be as good as the ranked ones by their bounds, but were not played.
  size_t left = 0;
  double lowest_left = 0;  // the lowest of their bounds: seconds, or bytes
  Band band;
};

// Values closer than this share are a tie: the prediction cannot tell which is faster.
constexpr double kNearTie = 0.02;

// `plan` is the plan of `recipe`, which is that of `source`, with a number of ranks and a
// vocabulary. Candidates pass, in this order: divisibility, the rules of recipes, memory, an
// optimistic bound, and a prediction.
LayoutRanking search_layouts(const plan::RecipeSource& source, const Recipe& recipe,
                             const RunPlan& plan, const plan::Cluster& cluster,
                             const LaunchCosts& costs, const LayoutSearch& search);

}  // namespace mtrain::predict
