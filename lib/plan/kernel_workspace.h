// Computes the memory that kernels allocate during a launch on a GPU.
#pragma once
#include "plan/layer_activations.h"

namespace mtrain::plan {

// Returns the bytes of the largest workspace of a rank's launches: that of a GEMM or that of
// attention, since only one of them runs at a time. 0 on the CPU. `layer` describes the rank's
// layers; a rank without layers has no attention.
Count kernel_workspace(const RunPlan& plan, const LayerActivations& layer, bool has_layers);

}  // namespace mtrain::plan
