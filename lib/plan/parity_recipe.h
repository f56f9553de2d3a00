// The forms of a recipe that `mtrain parity` trains: a shrunk model under the recipe's layout, and
// the same model on a single rank.
#pragma once
#include <string>
#include <vector>

#include "plan/plan_trial.h"

namespace mtrain::plan {

inline constexpr int64_t kParityVocab = 256;

// Returns a small model and batch for which the rules accept the layout, with all of the recipe's
// overlap that can be active. Throws UserError if there is none.
Change shrink_for_parity(const RecipeSource& source, int64_t steps);

// Returns the sizes of a form, for people: "4 layers, hidden size 32, 2 heads, 8 samples of 32
// tokens".
std::string parity_sizes_text(const Trial& trial);

// Returns the change after which the shrunk recipe needs one rank.
Change on_single_rank(const RecipeSource& source, const Change& shrunk);

// What turns one overlap feature off.
struct OverlapOff {
  std::string what;              // "comm_overlap.cp_overlap=false"
  std::optional<Change> change;  // absent: it cannot be off alone
};
std::vector<OverlapOff> each_overlap_off(const RecipeSource& source, const Change& shrunk,
                                         const RunPlan& plan);

}  // namespace mtrain::plan
