// Whether micro-batches are launched as CUDA graphs, which of a step, and why not.
#pragma once
#include <cstdint>
#include <string>

#include "plan/overlap.h"

namespace mtrain::plan {

struct CudaGraphs {
  bool on = false;
  bool refused = false;  // asked for by name, but impossible
  std::string why;       // not; where on, which micro-batches
  bool known = false;    // the device has graphs, so that a user wants to hear of them
  // Of a step's micro-batches [first, end) touch nothing but this rank's memory, at the same
  // addresses each time. The others are launched one by one.
  int64_t first = 0, end = 0;
};

// A pure function of the recipe and the layout. What only a run knows (launches that a library
// cannot record, or --profile) may turn them off later.
CudaGraphs resolve_cuda_graphs(const recipe::Recipe& recipe, const Layout& layout,
                               const Overlap& overlap);

// "on: micro-batches 2 to 7 of 8", "off: why"; for the start banner.
std::string print_cuda_graphs(const CudaGraphs& graphs);

}  // namespace mtrain::plan
