// Searches for a change of a recipe after which its plan fits the device's memory.
#pragma once
#include <string>

#include "plan/device_text.h"
#include "plan/plan_trial.h"

namespace mtrain::plan {

struct FitAdvice {
  bool fits = false;    // whether the changed plan fits; if not, no plan that was tried needs less
  Change change = {};   // nothing if no change needs less memory
  MemoryDemand demand;  // of the changed plan
  int64_t world = 0;    // its ranks
  int trials = 0;       // how many plans were tried
  bool all = true;      // whether all combinations of sizes were tried if nothing fits
};

// Tries changes through the real plan and returns the first that fits, in this order: more ranks if
// the user gave no number; stronger sharding; recomputation; larger sizes of tp, ep, cp, pp; a
// smaller micro-batch. If none of them fits alone, it tries combinations in the same order. The
// number of trials is bounded. `plan` is the plan of `recipe`, which does not fit.
FitAdvice search_fit(const RecipeSource& source, const Recipe& recipe, const RunPlan& plan);

// Returns a hint such as "add recompute=full: 61.2 GiB are then planned".
std::string hint_text(const FitAdvice& advice);

}  // namespace mtrain::plan
