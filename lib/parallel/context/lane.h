// The way that keys, values and heads travel between the ranks of context parallelism, on a stream
// of its own.
#pragma once
#include <map>
#include <string_view>
#include <utility>

#include "tensor/tensor.h"

namespace mtrain {

// Shared by the attention cores of a rank. When a core's forward or backward returns, everything
// that it sent is part of what `compute` waits for; so the next core may use the same memory.
class ContextLane {
 public:
  // Without `overlap` compute stands still for every communication: the same calls, the same bits.
  ContextLane(Stream& travel, bool overlap) : travel_(travel), overlap_(overlap) {}

  // `communicate(stream)` runs after all that `compute` has been given so far; the returned event
  // is its end.
  template <class F>
  Event go(Stream& compute, const F& communicate) {
    // edge: what is sent, and the last use of what is received into -> the communication
    travel_.wait(compute.record());
    communicate(travel_);
    Event arrived = travel_.record();
    if (!overlap_) compute.wait(arrived);
    return arrived;
  }

  // Memory under a name, kept between calls: what both streams touch would otherwise be handed out
  // anew for as long as the host runs ahead.
  Tensor memory(Stream& compute, std::string_view name, Shape shape, DType dtype);

 private:
  Stream& travel_;
  const bool overlap_;
  std::map<std::pair<std::string_view, DType>, Tensor> memory_;
};

}  // namespace mtrain
