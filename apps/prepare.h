// Loads and checks the recipe of a training. mtrain-launch does this once for all ranks of a host,
// before they start. Each rank repeats it.
#pragma once
#include <cstdint>
#include <string>

#include "apps/train_options.h"
#include "plan/machine.h"
#include "plan/plan_trial.h"
#include "recipe/recipe.h"

namespace mtrain {

// Who prepares the training, and on which machine.
struct Preparation {
  int64_t ranks = 1;  // ranks of the job
  plan::Machine machine = {};
  bool launched = false;     // a launcher starts the ranks
  bool restarted = false;    // the launcher has started the ranks before
  bool finds_files = false;  // check the files now; all ranks use those of this host
};

struct Prepared {
  Recipe recipe;
  int64_t world = 1;               // ranks to plan for; 0: the fewest that the sizes allow
  std::string saved_model;         // what interchange::continued_model() returned
  Diagnostics diagnostics;         // contains no error
  plan::RecipeSource source = {};  // for trials of other settings
};

// Returns the folders that contain the ready recipes.
std::vector<std::string> folders_of_recipes();

// Prints the warnings of a recipe without errors, and then what was derived for it, to stderr.
void tell(const Diagnostics& diagnostics);

// Loads the recipe and checks it against the machine and the supported features. If `finds_files`,
// it also checks the files that the recipe names. Throws one UserError with all mistakes.
Prepared prepare(const TrainOptions& options, const Preparation& preparation);

}  // namespace mtrain
