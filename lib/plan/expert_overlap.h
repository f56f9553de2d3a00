// Decides what hides the exchanges of tokens between the ranks of experts.
#pragma once
#include <string>

#include "plan/overlap_row.h"

namespace mtrain::plan {

// Decides shared_expert_overlap and moe_dispatch_chunks and adds their rows to the table, and what
// the token dispatcher's exchanges hide behind. overlap.overlap_p2p_comm must be decided.
void resolve_expert_exchanges(const recipe::Recipe& recipe, const Layout& layout, Overlap& overlap);

// Whether overlap_moe_expert_parallel_comm can be active. overlap.overlap_p2p_comm must be decided.
Condition expert_pairs(const recipe::Recipe& recipe, const Layout& layout, const Overlap& overlap);

// Returns for the table what the weight gradients of a delayed layer keep if it has experts, beyond
// those of a dense layer; "" for a model without experts.
std::string delayed_experts_text(const recipe::Recipe& recipe, const Layout& layout);

}  // namespace mtrain::plan
