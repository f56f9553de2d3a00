// Statistics of a step about the experts of all layers, from counts that are summed over all ranks.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::train {

struct ExpertStats {
  double balance_loss = 0, z_loss = 0;  // summed over layers; means over micro-batches
  // An expert's load is the number of its choices, divided by the mean over its layer. These are
  // the largest load, and the loads' coefficient of variation as a mean over the layers.
  double load_max = 0, load_variation = 0;
  int64_t dead = 0;    // experts that no token chose
  double dropped = 0;  // fraction of all choices that exceeded their expert's capacity
  // Under expert parallelism: the most rows of a layer that one ep rank computes, divided by the
  // mean over these ranks; and how long this rank's host waited for the numbers of rows.
  double rank_load_max = 1, host_wait_ms = 0;
};

// Computes all fields except losses and times. `sums_LS` are the rows of ExpertsOfStep::sums_LS,
// one for each layer; rows of layers without experts are 0. Each of the `ranks` of ep has equally
// many of the `experts`.
ExpertStats expert_loads(const std::vector<float>& sums_LS, int64_t layers, int64_t experts,
                         int64_t ranks);

}  // namespace mtrain::train
