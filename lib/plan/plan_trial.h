// Plans a recipe with other settings, as a user would who adds them to the command line. The advice
// of a dry run uses this, and so can a search for layouts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Everything that a recipe was loaded from.
struct RecipeSource {
  const recipe::ModelSource* models = nullptr;  // must outlive this object
  std::string path;
  std::vector<std::string> settings = {};  // overrides, as load_recipe() takes them
  int64_t world = 0;                       // 0: the fewest ranks that the sizes allow
  Machine machine = {};
  std::string saved_model = {};
  std::string text = {};  // if not empty, the recipe's text; messages then call it `path`
};

// What a user changes.
struct Change {
  std::vector<std::string> settings;  // "distributed.tp_size=2", "~distributed.dp_size"
  int64_t world = 0;                  // the number of ranks; 0: that of the source

  // Adds the settings of another change, except for those that this one already has.
  void add(const Change& more);
  // Returns the words that a user adds to the command line, quoted where a shell needs it.
  std::string words() const;
};

struct Trial {
  Recipe recipe;
  RunPlan plan;
};

// Loads the changed recipe, checks it against all rules, and plans it. Returns nothing if a rule
// refuses it. `vocab` is as in make_plan().
std::optional<Trial> plan_trial(const RecipeSource& source, const Change& change, int64_t vocab);

}  // namespace mtrain::plan
