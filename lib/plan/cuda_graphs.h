// Decides whether micro-batches are launched as CUDA graphs, and which of a step's they are.
#pragma once
#include <cstdint>
#include <string>

#include "plan/overlap.h"

namespace mtrain::plan {

struct CudaGraphs {
  bool on = false;
  // Why graphs that the recipe asks for by name are off; `no` also where it does not ask.
  OverlapRow::Off off = OverlapRow::Off::no;
  std::string why;     // if on: which micro-batches are graphs; else the reason why none is
  bool known = false;  // the device has graphs, so that the banner has a line about them
  // Micro-batches [first, end) of a step touch only this rank's memory, at the same addresses in
  // every step. The launches of the others are enqueued one by one.
  int64_t first = 0, end = 0;
};

// This is a pure function of the recipe and the layout. A run may turn graphs off later, for
// --profile or if a library cannot record its launches.
CudaGraphs resolve_cuda_graphs(const recipe::Recipe& recipe, const Layout& layout,
                               const Overlap& overlap);

// Returns a phrase for the start banner: "on: micro-batches 2 to 7 of 8", or "off: " and the
// reason.
std::string print_cuda_graphs(const CudaGraphs& graphs);

}  // namespace mtrain::plan
