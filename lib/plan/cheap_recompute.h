// Decides whether backward computes the outputs of norms and activations again. They are cheap to
// compute and take a third or so of a layer's activations.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan;

// The part of a device's memory that a plan may fill: what libraries take for themselves, and the
// allocator's gaps, are not in the plan.
inline constexpr double kUsableMemory = 0.9;

// Returns the bytes of a rank's device. Returns 0 if they are not known, as those of a GPU that was
// only taken for one of hardware.gpu's.
double device_memory(const recipe::Recipe& recipe);

// Sets `recompute.cheap` and `memory` of the plan, whose other parts must be set, and adds the
// reason to `text.recompute`. All ranks decide alike: by the rank that needs most.
void resolve_cheap_recompute(const recipe::Recipe& recipe, RunPlan& plan);

}  // namespace mtrain::plan
