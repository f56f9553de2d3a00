// What each product of a layer hides under tp_comm_overlap.
#pragma once
#include "plan/overlap.h"

namespace mtrain {

// Adds to overlap.tp_products and to the table; tp_comm_overlap is active.
void resolve_tp_gemm_overlap(const Recipe& recipe, const Layout& layout, Overlap& overlap);

}  // namespace mtrain
