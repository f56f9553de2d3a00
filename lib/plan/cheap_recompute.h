// Decides whether backward recomputes the outputs of norms and activation functions. They are cheap
// to compute and take about a third of a layer's activations.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan;

// The part of a device's memory that a plan may fill. The rest is for libraries and for the
// allocator's gaps, which a plan does not count.
inline constexpr double kUsableMemory = 0.9;

// Returns the bytes of a rank's device memory: hardware.memory_gb, or else what hardware.gpu
// usually has. Returns 0 if neither is known, as on a CPU, on a part of a GPU (MIG), or on a GPU
// that mtrain does not know.
double device_memory(const recipe::Recipe& recipe);

// Sets `recompute.cheap` and `memory` of the plan, whose other parts must be set, and adds the
// reason to `text.recompute`. The decision is the same on all ranks: the rank that needs most
// memory determines it.
void resolve_cheap_recompute(const recipe::Recipe& recipe, RunPlan& plan);

}  // namespace mtrain::plan
