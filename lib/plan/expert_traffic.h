// How many bytes a rank sends to the other ranks of ep in a step.
#pragma once

namespace mtrain::plan {

struct RunPlan;

// The largest of all pipeline ranks, if experts' loads are balanced.
double expert_bytes_per_step(const RunPlan& plan);

}  // namespace mtrain::plan
