// Decides whether micro-batches are launched as CUDA graphs, which micro-batches of a step, and
// whether a step is two graphs: its micro-batches, and its update.
#pragma once
#include <cstdint>
#include <string>

#include "plan/overlap.h"

namespace mtrain::plan {

struct CudaGraphs {
  bool on = false;
  // Why graphs are off although the recipe asks for them by name. `no` if they are on, or if the
  // recipe does not ask.
  OverlapRow::Off off = OverlapRow::Off::no;
  std::string why;     // if on: which micro-batches are graphs; otherwise why none is
  bool known = false;  // the device has graphs; only then does the banner mention them
  // Micro-batches [first, end) of a step are graphs. They use the same memory in every step, and
  // communicate only as every micro-batch does. The launches of the other micro-batches are
  // enqueued one by one.
  int64_t first = 0, end = 0;
  bool communicates = false;  // graphs contain calls of NCCL
  // One graph has all micro-batches of a step, and another one its update.
  bool full_step = false;
  // Why not, although the recipe asks for it; `no` otherwise.
  OverlapRow::Off full_step_off = OverlapRow::Off::no;
  std::string full_step_why;
};

// This is a pure function of the recipe and the layout. A run may turn graphs off later, for
// --profile or if a library cannot record its launches.
CudaGraphs resolve_cuda_graphs(const recipe::Recipe& recipe, const Layout& layout,
                               const Overlap& overlap);

// Returns a phrase for the start banner: "on: micro-batches 2 to 7 of 8", or "off: " and the
// reason.
std::string print_cuda_graphs(const CudaGraphs& graphs);

}  // namespace mtrain::plan
