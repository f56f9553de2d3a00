// Checks and sizes layouts of one recipe, much faster than load_recipe() and make_plan() do: a
// search for layouts looks at thousands of them.
#pragma once
#include "plan/layout.h"
#include "plan/memory.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

struct RunPlan;

// Checks a recipe that differs from a valid one in its layout alone: in the section `distributed`,
// in ddp.use_distributed_optimizer, train.micro_batch_size and recompute. Leaves out the rules that
// such a change cannot break. Calls check_supported() as well.
void validate_layout(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);

// Gives a plan with a vocabulary the sizes of such a recipe. Sets what estimate_own_memory() reads,
// without mesh, texts and lists of actions; so it takes microseconds. Outputs of norms and
// activations are recomputed unless the recipe keeps them, as in a plan that would not fit
// otherwise.
void change_layout(const Recipe& recipe, const Layout& layout, RunPlan& plan);

// Estimates the memory as estimate_memory() does, but without NCCL's and per_tenth_of_rows.
MemoryEstimate estimate_own_memory(const RunPlan& plan, int64_t pp_rank, PairOrders& orders);

}  // namespace mtrain::plan
