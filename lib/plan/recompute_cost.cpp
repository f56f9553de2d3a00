#include "plan/recompute_cost.h"

#include <algorithm>

#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {

// The convention of TokenCost: 2 FLOPs per weight, and all positions that a window allows.
double core_flops(const spec::GroupedAttention& a, int64_t length) {
  const int64_t positions = a.window > 0 ? std::min(a.window, length) : length;
  return 2.0 * Count(a.heads) * Count(a.head_dim + a.value_dim()) * Count(positions);
}

// Returns the FLOPs of a layer's forward.
double layer_flops(const RunPlan& plan, const spec::LayerSpec& layer) {
  const LayerParameters& p = layer.experts() ? plan.parameters.moe : plan.parameters.dense;
  return 2 * p.active + core_flops(layer.grouped(), plan.sample_length);
}

double router_flops(const RunPlan& plan, const spec::LayerSpec& layer) {
  return layer.experts() ? 2 * Count(plan.model.hidden) * Count(layer.experts()->count) : 0;
}

// Returns how often a micro-batch runs a layer. One layer may predict several further tokens.
double runs_of(const RunPlan& plan, int64_t layer) {
  const spec::TokenPrediction& mtp = plan.model.mtp;
  return mtp.repeated && layer == plan.model.main_layers() ? double(mtp.depths) : 1;
}

// Full recomputation runs the forward of the first layers of each stage again. A layer of
// multi-token prediction begins with a projection from 2 H to H.
double full_flops(const RunPlan& plan) {
  const auto H = Count(plan.model.hidden);
  double flops = 0;
  int64_t first = 0;
  for (const int64_t layers : plan.layout.layers_of_stage) {
    for (int64_t i = first; i < first + std::min(layers, plan.recompute.layers); ++i) {
      const spec::LayerSpec& layer = plan.model.layer(i);
      double once = layer_flops(plan, layer);
      if (plan.recompute.keeps_router) once -= router_flops(plan, layer);
      if (i >= plan.model.main_layers()) once += 2 * 2 * H * H;
      flops += runs_of(plan, i) * once;
    }
    first += layers;
  }
  return flops;
}

// Returns the FLOPs of the linears that expand the heads of latent attention.
double latent_up_flops(const spec::GroupedAttention& a, Count H) {
  if (!a.latent) return 0;
  const Count q_in = a.latent->q_rank > 0 ? Count(a.latent->q_rank) : H,
              kv = Count(a.head_dim + a.value_dim() - a.latent->rope_dim);
  return 2 * Count(a.heads) * (q_in * Count(a.head_dim) + Count(a.latent->kv_rank) * kv);
}

// Returns the FLOPs that a recomputation of selected modules adds. It computes the first GEMM of an
// MLP again; the gate of a shared expert also needs the output of the second one.
double selected_flops(const RunPlan& plan, const spec::LayerSpec& layer) {
  const RecomputeOptions& r = plan.recompute;
  const Count H = Count(plan.model.hidden);
  double flops = r.attention_core ? core_flops(layer.grouped(), plan.sample_length) : 0;
  if (r.latent_up) flops += latent_up_flops(layer.grouped(), H);
  if (const spec::Experts* e = layer.experts()) {
    if (r.experts) flops += 2 * 2 * H * Count(e->ffn) * Count(e->per_token);
    if (r.shared_expert) flops += 2 * (e->shared_gate ? 3 : 2) * H * Count(e->shared_ffn);
  } else if (const auto* mlp = std::get_if<spec::DenseMlp>(&layer.mlp); mlp && r.mlp) {
    flops += 2 * (mlp->gated() ? 2 : 1) * H * Count(mlp->ffn);
  }
  return flops;
}

}  // namespace

double recomputed_flops(const RunPlan& plan) {
  if (plan.recompute.group > 0) return full_flops(plan);
  double flops = 0;
  for (int64_t i = 0; i < plan.model.layer_count(); ++i)
    flops += runs_of(plan, i) * selected_flops(plan, plan.model.layer(i));
  return flops;
}

double recomputed_share(const RunPlan& plan) {
  const double all = plan.token_cost.flops(plan.sample_length);
  return all > 0 ? recomputed_flops(plan) / all : 0;
}

}  // namespace mtrain::plan
