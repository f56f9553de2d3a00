// The costs of a typical layer with experts, and the times of a pass that runs alone.
#pragma once
#include <cstdint>
#include <span>

#include "schedule/pass_costs.h"

namespace mtrain::schedule {

// The total compute time of a stage's passes, and how its layers exchange tokens.
struct ExpertStage {
  double F = 1, I = 1, W = 1;  // times of the forward, the input and the weight gradients
  int64_t layers = 1;          // all of them with experts
  double exchange = 0;         // time of all exchanges / time of all computations
};

// Divides the times evenly between the layers. In each layer, attention takes half of a pass, the
// routed experts 0.4, the router and the shared expert 0.05 each. The four exchanges take equal
// time.
PassCosts costs_of_layer(const ExpertStage& stage);

// Simulates a pass that runs alone, forward or backward. A compute part between two exchanges, and
// these exchanges, are divided into `chunks` of equal size. Each chunk of an exchange has the full
// latency. While one chunk is computed, the next one arrives and the previous one returns. Work
// that the part does before it waits (`ahead`) comes before the chunks, its weight gradients after
// them. Other delayed weight gradients are computed before the next part that waits for an
// exchange. Without chunks a pass is ordered by `estimates`, costs of the same parts, or by its own
// costs if that is empty.
PairTimeline simulate_pass(std::span<const PairPart> pass, int64_t chunks,
                           const PairOptions& options, std::span<const PairPart> estimates = {});

}  // namespace mtrain::schedule
