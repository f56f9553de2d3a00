#include "plan/expert_traffic.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {

// Tokens of a micro-batch that a rank routes.
double tokens(const RunPlan& plan) {
  const Layout& l = plan.layout;
  const double tp = plan.tensor.sequence_parallel ? double(l.tp) : 1;
  return double(l.micro_batch) * double(plan.sample_length) / double(l.cp) / tp;
}

// Rows that a rank sends for each of its tokens, one way.
double rows_sent(const RunPlan& plan) {
  const Layout& l = plan.layout;
  // tp ranks with different tokens and with parts of the same experts. Rows are gathered over them.
  const double parts = plan.tensor.sequence_parallel ? double(l.expert_tp) : 1;
  const double ep = double(l.ep), others = (ep - 1) / ep;  // the share of the other ranks of ep
  using enum TokenDispatch;
  switch (l.ep == 1 ? all_gather : plan.experts.dispatcher) {
    case all_to_all: return expert_rows_per_token(plan) * (others + parts - 1);
    // All tokens of a rank go to every other rank.
    case all_gather: return ep * parts - 1;
    case flex: return expert_ranks_per_token(plan) * others;  // once to each of a token's ranks
  }
  throw BugError("a dispatcher");
}

// Returns a description without any experts for a dense model.
spec::Experts experts_of(const RunPlan& plan) {
  const spec::Experts* experts = plan.model.experts();
  return experts ? *experts : spec::Experts{};
}

double row_bytes(const RunPlan& plan) {
  return double(plan.model.hidden * dtype_size(plan.compute_dtype));
}

// Returns the bytes of one layer and micro-batch. Rows travel with their weights to the experts,
// and come back; so do gradients. If backward recomputes only the experts, their inputs travel
// again.
double bytes_per_layer(const RunPlan& plan, bool recomputed) {
  const double K = double(experts_of(plan).per_token), row = row_bytes(plan),
               passes = recomputed ? 3 : 2, resent = plan.recompute.experts ? row : 0;
  const bool rows_alone =
      plan.layout.ep > 1 && plan.experts.dispatcher == TokenDispatch::all_to_all;
  // A row travels with its own weight, a full token with all its choices and weights.
  const double weights = rows_alone
                             ? passes * sizeof(float)
                             : passes * K * sizeof(float) + (passes - 1) * K * sizeof(int32_t);
  return tokens(plan) * rows_sent(plan) * (passes * 2 * row + weights + resent);
}

}  // namespace

std::vector<bool> experts_of_stage(const RunPlan& plan, int64_t stage) {
  const std::vector<int64_t>& layers = plan.layout.layers_of_stage;
  const auto first = std::accumulate(layers.begin(), layers.begin() + stage, int64_t{0});
  std::vector<bool> experts;
  for (int64_t i = 0; i < layers[size_t(stage)]; ++i)
    experts.push_back(plan.model.layer(first + i).experts() != nullptr);
  return experts;
}

double expert_rows_per_token(const RunPlan& plan) {
  const spec::Experts e = experts_of(plan);
  if (!plan.experts.pad_to_capacity) return double(e.per_token);
  // This is the formula of spec::Experts::capacity().
  const double T = tokens(plan), E = double(e.count),
               share = std::ceil(e.capacity_factor * T * double(e.per_token) / E);
  return std::min(share, T) * E / T;
}

double expert_ranks_per_token(const RunPlan& plan) {
  const spec::Experts e = experts_of(plan);
  const auto E = double(e.count), ep = double(plan.layout.ep);
  double elsewhere = 1;  // the probability that a rank has none of a token's experts
  for (int64_t k = 0; k < e.per_token; ++k)
    elsewhere *= std::max(0.0, E - E / ep - double(k)) / (E - double(k));
  return ep * (1 - elsewhere);
}

double expert_bytes_one_way(const RunPlan& plan) {
  return tokens(plan) * rows_sent(plan) * row_bytes(plan);
}

double expert_bytes_per_step(const RunPlan& plan) {
  const Layout& l = plan.layout;
  if (!plan.model.experts()) return 0;
  double most = 0;
  for (int64_t rank = 0; rank < l.pp; ++rank) {
    double layer_bytes = 0;
    for (const int64_t stage : stages_of_rank(plan.schedule_shape, rank)) {
      const std::vector<bool> experts = experts_of_stage(plan, stage);
      const auto add = [&](size_t i, double times) {
        if (experts[i])
          layer_bytes += times * bytes_per_layer(plan, int64_t(i) < plan.recompute.layers);
      };
      for (size_t i = 0; i < experts.size(); ++i) add(i, 1);
      // A layer that predicts several further tokens runs once for each.
      if (stage == l.prediction_stage() && plan.model.mtp.depths > 0)
        add(experts.size() - 1, double(plan.model.mtp.depths - plan.model.mtp.layers()));
    }
    most = std::max(most, layer_bytes * double(l.step_micro_batches()));
  }
  return most;
}

}  // namespace mtrain::plan
