// What a training needs before any rank starts: the recipe, loaded and checked. mtrain-launch does
// it once for all ranks of a host, and each rank again for itself.
#pragma once
#include <cstdint>
#include <string>

#include "apps/train_options.h"
#include "plan/machine.h"
#include "recipe/recipe.h"

namespace mtrain {

// Who prepares the training, and where.
struct Preparation {
  int64_t ranks = 1;  // of the job
  plan::Machine machine = {};
  bool launched = false;     // a launcher starts the ranks
  bool restarted = false;    // it has started them before
  bool finds_files = false;  // this host's files are those of all ranks, and may be looked for now
};

struct Prepared {
  Recipe recipe;
  int64_t world = 1;        // ranks to plan for; 0: the fewest that the sizes allow
  std::string saved_model;  // what interchange::continued_model() returned
  Diagnostics diagnostics;  // without an error
};

// Returns the folders in which the ready recipes lie.
std::vector<std::string> folders_of_recipes();

// Loads the recipe and checks it against the machine, against what is built and, if they may be
// looked for, against the files that it names. Throws all mistakes as one UserError.
Prepared prepare(const TrainOptions& options, const Preparation& preparation);

}  // namespace mtrain
