#include "plan/expert_traffic.h"

#include <algorithm>

#include "base/error.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {

// Returns the bytes of one layer and micro-batch: rows go to the experts with their weights, and
// come back; so do gradients. Experts that are recomputed by themselves get their inputs again.
double bytes_per_layer(const RunPlan& plan, bool recomputed) {
  const Layout& l = plan.layout;
  const ExpertShape& e = plan.model.experts;
  const bool sequence = plan.tensor.sequence_parallel;
  // Ranks of tp that have other tokens and parts of the same experts: rows are gathered over them.
  const double parts = sequence ? double(l.expert_tp) : 1;
  const double T = double(l.micro_batch) * double(plan.sample_length) / double(l.cp) /
                   (sequence ? double(l.tp) : 1),
               K = double(e.per_token), ep = double(l.ep),
               row = double(plan.model.hidden * dtype_size(plan.compute_dtype)),
               passes = recomputed ? 3 : 2, again = plan.recompute.experts ? row : 0;
  using enum ExpertOptions::Dispatcher;
  switch (l.ep == 1 ? all_gather : plan.experts.dispatcher) {
    case all_to_all:
      return T * K * ((ep - 1) / ep + parts - 1) * (passes * (2 * row + sizeof(float)) + again);
    // The whole tokens of a rank go to every other rank, with all choices and weights.
    case all_gather:
      return T * (ep * parts - 1) *
             (passes * (2 * row + K * sizeof(float)) + (passes - 1) * K * sizeof(int32_t) + again);
  }
  throw BugError("a dispatcher");
}

}  // namespace

double expert_bytes_per_step(const RunPlan& plan) {
  const Layout& l = plan.layout;
  const ExpertShape& e = plan.model.experts;
  if (e.count == 0) return 0;
  double most = 0;
  for (int64_t rank = 0; rank < l.pp; ++rank) {
    double layer_bytes = 0;
    const auto stages = stages_of_rank(plan.schedule_shape, rank);
    int64_t first = 0;
    for (int64_t s = 0; s < l.stages; ++s) {
      const int64_t layers = l.layers_of_stage[size_t(s)];
      if (std::ranges::find(stages, s) != stages.end())
        for (int64_t i = 0; i < layers; ++i)
          if (e.layers.at(size_t(first + i)))
            layer_bytes += bytes_per_layer(plan, i < plan.recompute.layers);
      first += layers;
    }
    most = std::max(most, layer_bytes * double(l.step_micro_batches()));
  }
  return most;
}

}  // namespace mtrain::plan
