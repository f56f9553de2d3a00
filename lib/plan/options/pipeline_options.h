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
  // Without overlap: the messages between two computations go one after the other; else together.
  bool one_by_one = false;
  DType dtype = DType::f32;          // type of messages
  DType compute_dtype = DType::f32;  // type of what stages compute with
  schedule::PairedGradient paired_gradient = schedule::PairedGradient::at_end;
  // Weight gradients of this many first layers of a stage wait until the gradient of the stage's
  // input is on its way: those of attention, router and shared expert, or with `delay_whole_layers`
  // those of the MLP or the routed experts, too.
  int64_t delayed_layers = 0;
  bool delay_whole_layers = false;
  // By these the parts of a forward and of a backward that run together are ordered
  // (schedule/pair_order.h); without them the two take turns.
  std::optional<schedule::PassCosts> pair_costs;
  // A segment's weight gradients run after the whole of its input gradient, not amid it; where
  // parts are ordered by costs, after the exchanges that can begin.
  bool split_wgrad = false;
  // The output layer of the last stage and the embedding of the first one add to the gradient of
  // one table, which is on one rank. In a pair of passes the output layer then comes last, so that
  // the order of these sums does not depend on what runs together.
  bool head_shares_table = false;
  // If parameters are sharded over data-parallel ranks, the list keeps those of this many stages
  // gathered at once. 0: they are gathered for each use.
  int64_t most_gathered = 0;
  // The output layer's weight gradients of this many last micro-batches wait for the list's end.
  int64_t deferred_outputs = 0;
};

}  // namespace mtrain::plan
