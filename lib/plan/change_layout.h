// Checks and sizes layouts of one recipe, much faster than load_recipe() and make_plan() do: a
// search for layouts looks at thousands of them.
#pragma once
#include "plan/layout.h"
#include "plan/memory.h"
#include "plan/overlap.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

struct RunPlan;

// Check a recipe that differs from a valid one in its layout alone: in the section `distributed`,
// in ddp.use_distributed_optimizer, train.micro_batch_size and recompute. Leave out the rules that
// such a change cannot break. validate_layout() has all rules that do not read recompute, but by
// the overlap, and calls check_supported(); validate_recomputation() has the others.
void validate_layout(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                     Diagnostics& diagnostics);
void validate_recomputation(const Recipe& recipe, Diagnostics& diagnostics);
// Whether the overlap of a recipe depends on its recomputation.
bool recomputation_changes_overlap(const Recipe& recipe);

// Gives a plan with a vocabulary the sizes of such a recipe. Sets what estimate_own_memory() reads,
// without mesh, texts and lists of actions; so it takes microseconds. Outputs of norms and
// activations are recomputed unless the recipe keeps them, as in a plan that would not fit
// otherwise.
void change_layout(const Recipe& recipe, Layout layout, Overlap overlap, RunPlan& plan);
// Does the same if the plan has the recipe's layout but for its recomputation, which must not
// change the overlap.
void change_recomputation(const Recipe& recipe, RunPlan& plan);

// Estimates the memory as estimate_memory() does, but without NCCL's and per_tenth_of_rows.
MemoryEstimate estimate_own_memory(const RunPlan& plan, int64_t pp_rank, PairOrders& orders);

}  // namespace mtrain::plan
