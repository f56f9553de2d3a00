// What the parts of a stage's forward and backward cost: by these an order of the parts of two
// passes that run together is chosen.
#pragma once

namespace mtrain::plan {

// Seconds of a micro-batch on one rank.
struct PartCost {
  double forward = 0, backward = 0;
  double weights = 0;  // of the weight gradients, which are not in `backward`
};

struct PassCosts {
  PartCost attention, mlp;          // of a layer without experts, and attention of all layers
  PartCost route, experts, shared;  // of a layer with experts
  PartCost exchange;                // of rows, one way
  PartCost head;                    // `forward` has the gradients, too
  bool host_reads_rows = true;      // the host waits for the numbers of rows before they leave
};

}  // namespace mtrain::plan
