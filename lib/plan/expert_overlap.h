// Decides how the exchanges of tokens between expert-parallel ranks hide behind compute.
#pragma once
#include <string>

#include "plan/overlap_row.h"

namespace mtrain::plan {

// Decides shared_expert_overlap and moe_dispatch_chunks, and adds their rows to the table. Adds a
// row that says what hides the exchanges of the token dispatcher. overlap.overlap_p2p_comm must be
// decided.
void resolve_expert_exchanges(const recipe::Recipe& recipe, const Layout& layout, Overlap& overlap);

// Whether overlap_moe_expert_parallel_comm can be active. overlap.overlap_p2p_comm must be decided.
Condition expert_pairs(const recipe::Recipe& recipe, const Layout& layout, const Overlap& overlap);

// Returns a phrase for the table: the memory that the experts of a delayed layer keep until their
// weight gradients are computed. Returns "" for a model without experts.
std::string delayed_experts_text(const recipe::Recipe& recipe, const Layout& layout);

}  // namespace mtrain::plan
