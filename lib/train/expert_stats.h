// What a step has found about the experts of all layers, from the numbers that all ranks have
// summed.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::train {

struct ExpertStats {
  double balance_loss = 0, z_loss = 0;  // summed over layers; means over micro-batches
  // Of an expert's share of the choices, over its layer's mean: the largest, and the mean over the
  // layers of the coefficient of variation.
  double load_max = 0, load_variation = 0;
  int64_t dead = 0;    // experts that no token chose
  double dropped = 0;  // the part of all choices that found no place in their expert's capacity
  // With experts spread over ep: the largest part of a layer's rows that one rank of ep computes,
  // over the mean; and how long this rank's host has waited to know how many rows there are.
  double rank_load_max = 1, host_wait_ms = 0;
};

// Computes the loads, and no losses nor times. `sums_LS` are the rows of ExpertsOfStep::sums_LS,
// one for each layer; those of layers without experts are 0. Each of `ranks` of ep has as many of
// the `experts`.
ExpertStats expert_loads(const std::vector<float>& sums_LS, int64_t layers, int64_t experts,
                         int64_t ranks);

}  // namespace mtrain::train
