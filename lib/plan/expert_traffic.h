// How many bytes of experts' rows a rank sends in a step: over ep, and over tp where its ranks
// divide experts and have other tokens each.
#pragma once

namespace mtrain::plan {

struct RunPlan;

// The largest of all pipeline ranks, if experts' loads are balanced.
double expert_bytes_per_step(const RunPlan& plan);

}  // namespace mtrain::plan
