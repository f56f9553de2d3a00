// Estimates by formula what one rank keeps in memory during a step, before any rank exists. A run's
// metrics show what the allocator measured.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "plan/layout.h"
#include "plan/model_size.h"
#include "plan/nccl_memory.h"
#include "schedule/pair_order.h"

namespace mtrain::plan {

struct RunPlan;

struct MemoryEstimate {
  Count parameters = 0;  // elements of this rank, before they are sharded over data parallelism
  Count params = 0, grads = 0, optimizer = 0;  // this and all that follow are bytes
  Count activations = 0;  // kept from forward to backward, and what one layer's backward needs
  Count logits = 0;       // what the head needs beyond `activations`; it runs while no layer does
  // Communication (gathered weights, tokens and keys in transit), and 8-bit weights.
  Count buffers = 0;
  // The most that kernels allocate during a launch on a GPU (plan/attention_workspace.h); 0 on the
  // CPU.
  Count workspace = 0;
  Count nccl = 0;  // what NCCL keeps for the rank's groups, an estimate (plan/nccl_memory.h)
  // By how much the total grows for each 10 % of rows that this rank's experts have beyond the mean
  // over the ranks of ep (moe.rank_load_max is 1.1, 1.2, ...). 0 unless rows travel.
  Count per_tenth_of_rows = 0;
  Count total() const {
    return params + grads + optimizer + activations + logits + buffers + workspace + nccl;
  }
};

// The orders in which pairs of passes of a plan run. Several estimates of a plan share them, since
// an order takes milliseconds to find.
class PairOrders {
 public:
  struct Pair {
    std::vector<schedule::PairPart> forward, backward;
    std::vector<schedule::PairStep> order;
  };
  // Returns the pair of a forward and a backward of stages; `experts` as in experts_of_stage().
  const Pair& of(const RunPlan& plan, const std::vector<bool>& forward_experts,
                 const std::vector<bool>& backward_experts);

 private:
  std::map<std::pair<std::vector<bool>, std::vector<bool>>, Pair> pairs_;
};

// Estimates the memory of the ranks whose coordinate along pp is `pp_rank`; they are alike. All
// fields of `plan` but `memory` and `pass_costs` must be set.
MemoryEstimate estimate_memory(const RunPlan& plan, int64_t pp_rank, PairOrders& orders,
                               const NcclMachine& machine);

}  // namespace mtrain::plan
