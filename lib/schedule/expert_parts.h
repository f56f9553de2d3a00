// The costs of a usual layer with experts, and the times of a pass that runs alone.
#pragma once
#include <cstdint>
#include <span>

#include "schedule/pass_costs.h"

namespace mtrain::schedule {

// What a stage's passes compute in all, and how its layers exchange tokens.
struct ExpertStage {
  double F = 1, I = 1, W = 1;  // times of the forward, the input and the weight gradients
  int64_t layers = 1;          // all of them with experts
  double exchange = 0;         // time of all exchanges / time of all computations
};

// Divides the times evenly between the layers. In each, attention takes half of a pass, the routed
// experts 0.4, the router and the shared expert 0.05 each; the four exchanges take equal time.
PassCosts costs_of_layer(const ExpertStage& stage);

// Plays a pass that runs alone, forward or backward. Where one part that computes stands between
// two exchanges, these three are divided into `chunks` of equal size (each with the latency of
// the exchanges), behind what the part does before it waits: the exchange of a chunk and the return
// of the one before travel while the chunk between them is computed; the weight gradients of the
// three follow all chunks. Others that are delayed are computed before the next part that waits for
// an exchange. Without chunks a pass is ordered by `estimates`, costs of the same parts, or by its
// own if that is empty.
PairTimeline simulate_pass(std::span<const PairPart> pass, int64_t chunks,
                           const PairOptions& options, std::span<const PairPart> estimates = {});

}  // namespace mtrain::schedule
