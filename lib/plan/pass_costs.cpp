#include "plan/pass_costs.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "base/gpu_facts.h"
#include "plan/expert_traffic.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

// FLOPs per second of GEMMs of a layer's size, in the compute type and in the linears' type, and
// bytes per second of a rank's link.
struct Rates {
  double flops, linear_flops, bytes;
};

// Whether all ranks that share experts lie within a node. They are neighbours: ep includes cp, and
// also tp if experts are undivided. The parts of a divided expert lie on tp ranks, which are
// neighbours, too.
bool within_node(const Layout& l, int64_t gpus_per_node) {
  const int64_t span = l.ep * l.expert_tp;
  return l.world <= gpus_per_node || gpus_per_node % span == 0;
}

recipe::LinkConfig link_of_experts(const recipe::Recipe& r) {
  return r.comm.link.slows(recipe::LinkTraffic::ep) ? r.comm.link : recipe::LinkConfig{};
}

// GEMMs of usual sizes reach half of the peak. In 8 bits the peak is twice as high. If all ranks
// that share experts lie within a node, they use its own links, otherwise the network.
Rates gpu_rates(const recipe::Recipe& r, const RunPlan& plan) {
  constexpr double kReached = 0.5;
  const GpuFacts& gpu = facts(r.hardware.gpu);
  const double flops = kReached * gpu.flops(plan.compute_dtype);
  const double in_8_bits =
      plan.fp8.on ? double(plan.fp8.end - plan.fp8.begin) / double(plan.model.layer_count()) : 0;
  return {flops, flops / (1 - in_8_bits / 2),
          within_node(plan.layout, r.hardware.gpus_per_node) ? gpu.link_bytes_per_second
                                                             : gpu.network_bytes_per_second};
}

// On a CPU the rates grow with the recipe's number of threads. If the recipe sets none, hosts may
// have different numbers, and the rates are those of one thread.
Rates rates(const recipe::Recipe& r, const RunPlan& plan) {
  if (r.train.device == recipe::DeviceChoice::cuda) return gpu_rates(r, plan);
  const double link = link_of_experts(r).gbps > 0 ? r.comm.link.gbps * 1e9 / 8
                                                  : kCpuFacts.link_bytes_per_second,
               flops = kCpuFacts.core_flops * double(std::max<int64_t>(1, r.train.threads)) /
                       r.debug.compute_slowdown;
  return {flops, flops, link};
}

// Returns how many collective calls an exchange makes, on average over both directions. Weights, or
// their gradients, travel with the rows in one of the two directions. alltoall and flex send them
// in the same call. If tp ranks have parts of experts, rows and weights each need another call over
// tp. all_gather also has a call for the choices in forward.
schedule::PartCost calls(const RunPlan& plan) {
  using enum TokenDispatch;
  const Layout& l = plan.layout;
  if (l.ep == 1 || plan.experts.dispatcher == all_gather) return {.forward = 2, .backward = 1.5};
  const bool parts = l.expert_tp > 1 && plan.tensor.sequence_parallel;
  const double each = parts ? 2.5 : 1;
  return {.forward = each, .backward = each};
}

// Returns the weights of a layer's attention. `copies`: how many ranks of tensor parallelism
// compute the latents of the same token.
double attention_weights(const spec::GroupedAttention& a, double H, double copies) {
  const auto q = double(a.heads * a.head_dim), out = H * double(a.out_width());
  if (!a.latent) return H * double(a.qkv_width()) + out;
  const auto q_rank = double(a.latent->q_rank), kv_rank = double(a.latent->kv_rank),
             rope = double(a.latent->rope_dim);
  const auto kv = double(a.heads) * (double(a.head_dim + a.value_dim()) - rope);
  const double down = H * (q_rank + kv_rank + rope);
  return copies * down + (q_rank > 0 ? q_rank : H) * q + kv_rank * kv + out;
}

// Returns those that expand the heads of latent attention.
double latent_up_weights(const spec::GroupedAttention& a, double H) {
  if (!a.latent) return 0;
  const double q_in = a.latent->q_rank > 0 ? double(a.latent->q_rank) : H,
               kv = double(a.head_dim + a.value_dim() - a.latent->rope_dim);
  return double(a.heads) * (q_in * double(a.head_dim) + double(a.latent->kv_rank) * kv);
}

// Returns how many of S positions a token attends to in a layer, on average: half of them, or those
// in the layer's window.
double positions_seen(const spec::ModelSpec& m, double S) {
  double sum = 0;
  for (const spec::LayerSpec& layer : m.layers) {
    const int64_t window = layer.grouped().window;
    const double w = window > 0 ? std::min(S, double(window)) : S;
    sum += w - w * w / (2 * S);
  }
  return sum / double(m.layer_count());
}

}  // namespace

schedule::PassCosts pass_costs(const recipe::Recipe& r, const RunPlan& plan) {
  const Layout& l = plan.layout;
  const spec::ModelSpec& m = plan.model;
  MT_CHECK(m.experts(), "costs of a pass without experts");
  const spec::Experts& e = *m.experts();
  const auto& a = m.layer(0).grouped();
  const Rates rate = rates(r, plan);
  const auto tp = double(l.tp), H = double(m.hidden);
  // Tokens of a micro-batch. Under tensor parallelism the tp ranks share the work on each token.
  const double T = double(l.micro_batch) * double(plan.sample_length) / double(l.cp);
  const auto gemm = [&](double weights) { return 2 * T * weights / tp / rate.flops; };
  const auto linears = [&](double weights) {
    const double each = gemm(weights) * rate.flops / rate.linear_flops;
    return schedule::PartCost{each, each, each};
  };

  schedule::PassCosts c;
  c.attention = linears(attention_weights(a, H, plan.tensor.sequence_parallel ? 1 : tp));
  // Backward computes two gradients, and recomputes the scores.
  const double core = gemm(positions_seen(m, double(plan.sample_length)) *
                           double(a.heads * (a.head_dim + a.value_dim())));
  c.attention.forward += core;
  c.attention.backward += 2.5 * core + (plan.recompute.attention_core ? core : 0);
  if (plan.recompute.latent_up) c.attention.backward += linears(latent_up_weights(a, H)).forward;
  if (const spec::DenseMlp* mlp = m.dense_mlp())
    c.mlp = linears((mlp->gated() ? 3 : 2) * H * double(mlp->ffn));
  const double router = gemm(H * double(e.count));
  c.route = {router, router, router};
  c.experts = linears(expert_rows_per_token(plan) * 3 * H * double(e.ffn));
  c.shared = linears(3 * H * double(e.shared_ffn));
  if (plan.recompute.mlp) c.mlp.backward += c.mlp.forward;
  if (plan.recompute.shared_expert) c.shared.backward += c.shared.forward;
  const double rows = expert_bytes_one_way(plan) / rate.bytes,
               latency = link_of_experts(r).latency_us * 1e-6;
  const schedule::PartCost n = calls(plan);
  c.exchange_latency = {.forward = n.forward * latency, .backward = n.backward * latency};
  c.exchange = {.forward = rows + c.exchange_latency.forward,
                .backward = rows + c.exchange_latency.backward};
  c.head = {.forward = 3 * gemm(H * double(m.vocab))};
  c.host_reads_rows = !plan.experts.pad_to_capacity;
  c.shared_overlaps = plan.overlap.shared_expert_overlap;
  return c;
}

std::string print_pass_costs(const schedule::PassCosts& costs) {
  const auto& [attention, mlp, route, experts, shared, exchange, exchange_latency, head,
               host_reads_rows, shared_overlaps] = costs;
  std::string text;
  const auto add = [&](const char* part, const schedule::PartCost& c) {
    text += fmt::format("{} {:a} {:a} {:a}, ", part, c.forward, c.backward, c.weights);
  };
  add("attention", attention);
  add("mlp", mlp);
  add("route", route);
  add("experts", experts);
  add("shared", shared);
  add("exchange", exchange);
  add("latency", exchange_latency);
  add("head", head);
  return text + fmt::format("{} {}", host_reads_rows, shared_overlaps);
}

}  // namespace mtrain::plan
