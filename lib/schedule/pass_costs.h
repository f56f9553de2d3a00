// The costs of the parts of a stage's forward and backward. They determine the order of the parts
// of two passes that run together, and their simulated times.
#pragma once
#include <vector>

#include "schedule/pair_order.h"

namespace mtrain::schedule {

// Seconds, or any unit, of a micro-batch on one rank.
struct PartCost {
  double forward = 0, backward = 0;
  double weights = 0;  // of the weight gradients, which are not in `backward`
};

struct PassCosts {
  PartCost attention, mlp;          // of a layer without experts, and attention of all layers
  PartCost route, experts, shared;  // of a layer with experts
  PartCost exchange;                // of rows, one way
  PartCost exchange_latency;        // the part of it that each of its chunks takes in full
  PartCost head;                    // `forward` has the gradients, too
  bool host_reads_rows = true;      // the host waits for the numbers of rows before they leave
  // Each GEMM of the shared expert runs during an exchange (shared_expert_overlap). Otherwise only
  // its forward does, during the return of the rows.
  bool shared_overlaps = false;
};

// A layer is attention | mlp, or attention | route | dispatch | experts | combine | merge. `other`
// takes negligible time.
enum class PassPart { attention, mlp, route, dispatch, experts, combine, merge, head, other };
PairPart forward_part(const PassCosts& costs, PassPart part);
PairPart backward_part(const PassCosts& costs, PassPart part);

// The parts of a stage's forward and backward.
struct StageParts {
  std::vector<PairPart> forward, backward;
};
// `with_experts`: which of the stage's layers have experts.
StageParts stage_parts(const PassCosts& costs, const std::vector<bool>& with_experts,
                       bool with_head);

}  // namespace mtrain::schedule
