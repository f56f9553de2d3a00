// Options of a pipeline: how a rank carries out its schedule's list of actions.
#pragma once
#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "schedule/action.h"
#include "schedule/pass_costs.h"

namespace mtrain::plan {

struct PipelineOptions {
  bool overlap = false;  // messages travel while the rank computes
  // Without overlap: the messages between two computations are sent one by one; otherwise together.
  bool one_by_one = false;
  DType dtype = DType::f32;          // type of messages
  DType compute_dtype = DType::f32;  // type that stages compute in
  schedule::PairedGradient paired_gradient = schedule::PairedGradient::at_end;
  // In this many first layers of a stage, weight gradients wait until the gradient of the stage's
  // input is being sent. These are the weight gradients of attention, router and shared expert.
  // With `delay_mlp_wgrads` those of the MLP or the routed experts wait, too.
  int64_t delayed_layers = 0;
  bool delay_mlp_wgrads = false;
  // Costs that order the parts of a paired forward and backward (schedule/pair_order.h). Without
  // costs the two passes take turns.
  std::optional<schedule::PassCosts> pair_costs;
  // A segment's weight gradients run after its input gradient is complete, not in between. If costs
  // order the parts, they run after the exchanges that can begin.
  bool split_wgrad = false;
  // The output layer of the last stage and the embedding of the first one add to the gradient of
  // one table, which is on one rank. In a pair of passes the output layer then comes last.
  // Therefore the order of these sums does not depend on which passes are paired.
  bool head_shares_table = false;
  // If parameters are sharded over data-parallel ranks, the rank keeps those of this many stages
  // gathered at once. 0: they are gathered for each use.
  int64_t max_gathered = 0;
  // The output layer's weight gradients of this many last micro-batches are computed at the end of
  // the rank's actions.
  int64_t deferred_outputs = 0;
};

}  // namespace mtrain::plan
