#include "plan/pass_costs.h"

#include "plan/expert_traffic.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

// What a rank computes in a second with GEMMs of a layer's size, and what its link carries.
struct Rates {
  double flops, bytes;
};

// Half of the published dense peak is what GEMMs of usual sizes reach. Experts that lie within a
// node talk over its own links, others over one network card for each GPU.
Rates gpu_rates(recipe::Gpu gpu, bool within_node) {
  constexpr double kReached = 0.5, kNetwork = 50e9;
  const bool blackwell = compute_capability(gpu) >= 10, ampere = compute_capability(gpu) < 9;
  const double peak = blackwell ? 2250e12 : ampere ? 312e12 : 989e12;
  const double own = blackwell ? 900e9 : ampere ? 300e9 : 450e9;
  return {kReached * peak, within_node ? own : kNetwork};
}

Rates rates(const recipe::Recipe& r, const Layout& l) {
  if (r.train.device == recipe::DeviceChoice::cuda)
    return gpu_rates(r.hardware.gpu, l.ep * l.tp * l.cp <= r.hardware.gpus_per_node);
  constexpr double kCore = 80e9, kSharedMemory = 4e9;
  const double link = r.comm.link.gbps > 0 ? r.comm.link.gbps * 1e9 / 8 : kSharedMemory;
  return {kCore / r.debug.compute_slowdown, link};
}

}  // namespace

schedule::PassCosts pass_costs(const recipe::Recipe& r, const RunPlan& plan) {
  const Layout& l = plan.layout;
  const ModelShape& m = plan.model;
  const ExpertShape& e = m.experts;
  const Rates rate = rates(r, l);
  const auto tp = double(l.tp), H = double(m.hidden);
  // Tokens of a micro-batch; under tensor parallelism its ranks share the work of each.
  const double T = double(l.micro_batch) * double(plan.sample_length) / double(l.cp);
  const auto gemm = [&](double weights) { return 2 * T * weights / tp / rate.flops; };
  const auto linears = [&](double weights) {
    return schedule::PartCost{gemm(weights), gemm(weights), gemm(weights)};
  };
  const double inputs = m.gated_mlp ? 2 : 1;
  const auto heads = double(m.heads * m.head_dim), kv = double(2 * m.kv_heads * m.head_dim);

  schedule::PassCosts c;
  c.attention = linears(H * (2 * heads + kv));
  // A token meets half of the positions; backward makes two gradients, and the scores once more.
  const double core = gemm(double(plan.sample_length) * heads);
  c.attention.forward += core;
  c.attention.backward += 2.5 * core + (plan.recompute.attention_core ? core : 0);
  c.mlp = linears((inputs + 1) * H * double(m.ffn));
  c.route = linears(H * double(e.count));
  c.experts = linears(expert_rows_per_token(plan) * (inputs + 1) * H * double(e.ffn));
  c.shared = linears((inputs + 1) * H * double(e.shared_ffn));
  if (plan.recompute.mlp) c.mlp.backward += c.mlp.forward;
  if (plan.recompute.shared_expert) c.shared.backward += c.shared.forward;
  const double bytes = expert_bytes_one_way(plan);
  c.exchange = {.forward = bytes / rate.bytes, .backward = bytes / rate.bytes};
  c.head = {.forward = 3 * gemm(H * double(m.vocab))};
  c.host_reads_rows = !plan.experts.pad_to_capacity;
  c.shared_overlaps = plan.overlap.shared_expert_overlap;
  return c;
}

}  // namespace mtrain::plan
