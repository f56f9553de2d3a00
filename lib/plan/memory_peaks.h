// Estimates by formula the largest memory of each category that the allocator of a rank counts.
#pragma once
#include "plan/model_size.h"

namespace mtrain::plan {

struct RunPlan;

// The categories of device::MemoryCategory, without workspace. All sizes are bytes.
struct MemoryPeaks {
  Count params = 0, grads = 0, optimizer = 0, activations = 0, buffers = 0;
  // The most that exists at once. It is below the sum if categories have their peaks at different
  // times.
  Count total = 0;
};

// Estimates the peaks of the ranks whose coordinate along pp is `pp_rank`. MemoryEstimate has the
// same parts, but without the buffers that fit into the memory of activations that are gone.
MemoryPeaks estimate_peaks(const RunPlan& plan, int64_t pp_rank);

}  // namespace mtrain::plan
