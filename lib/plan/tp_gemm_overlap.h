// Decides which communication each GEMM of a layer hides under tp_comm_overlap.
#pragma once
#include "plan/overlap.h"

namespace mtrain::plan {

// Fills overlap.tp_gemm_overlap and adds its rows to the table. Call it only if tp_comm_overlap is
// active.
void resolve_tp_gemm_overlap(const recipe::Recipe& recipe, const Layout& layout, Overlap& overlap);

}  // namespace mtrain::plan
