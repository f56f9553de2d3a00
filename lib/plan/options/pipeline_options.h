// How a rank of a pipeline carries out its schedule's list of actions.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace mtrain::plan {

struct PipelineOptions {
  bool overlap = false;      // messages travel while the rank computes
  DType dtype = DType::f32;  // of messages, which is the compute dtype
  // Where a forward and a backward run together, the gradient leaves as soon as it is there; else
  // it leaves when both have ended.
  bool gradients_first = false;
  // Weight gradients of so many first layers of a stage, those of attention or all of them, wait
  // until the gradient of the stage's input is on its way.
  int64_t delayed_layers = 0;
  bool delay_whole_layers = false;
  // A segment's weight gradients follow its input gradient, instead of being computed amid it.
  bool split_wgrad = false;
  // Where parameters are sharded over data-parallel ranks, the list keeps those of so many stages
  // gathered at once. 0: they are gathered for each use.
  int64_t most_gathered = 0;
  // For so many last micro-batches the output layer's weight gradients wait for the list's end.
  int64_t deferred_outputs = 0;
};

}  // namespace mtrain::plan
