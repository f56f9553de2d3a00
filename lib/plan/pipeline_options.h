// How a rank of a pipeline does what its schedule's list says.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace mtrain {

struct PipelineOptions {
  bool overlap = false;      // messages travel while the rank computes
  DType dtype = DType::f32;  // of messages: the compute dtype
  // A forward and a backward that run together: the gradient leaves as soon as it is there, else
  // with their end.
  bool gradients_first = false;
  // Weight gradients of so many first layers of a stage, of attention or of all of a layer, wait
  // until the gradient of its input is on its way.
  int64_t delayed_layers = 0;
  bool delay_whole_layers = false;
  // A segment's weight gradients follow its input gradient, instead of standing in its midst.
  bool split_wgrad = false;
  // Parameters that are sharded over data-parallel ranks: of so many stages they are kept gathered
  // at once, by the list. 0: they come and go with their uses.
  int64_t most_gathered = 0;
  // The output layer's weight gradients of so many last micro-batches wait for the list's end.
  int64_t deferred_outputs = 0;
};

}  // namespace mtrain
