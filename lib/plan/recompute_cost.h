// Counts the FLOPs that backward adds when it recomputes activations.
#pragma once

namespace mtrain::plan {

struct RunPlan;

// Returns the FLOPs per token of the GEMMs and attention cores that backward runs a second time.
// Norms and activation functions take few FLOPs, and are not counted. Reads only `model`,
// `parameters`, `recompute`, `layout` and `sample_length` of the plan.
double recomputed_flops(const RunPlan& plan);

// Returns the same number as a share of a token's model FLOPs: 0.25 for a quarter more. Also reads
// `token_cost`.
double recomputed_share(const RunPlan& plan);

}  // namespace mtrain::plan
