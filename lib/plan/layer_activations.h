// Estimates by formula the memory of one layer per token of a micro-batch on a rank. It has three
// parts: what forward keeps for backward, what exists while the layer runs backward, and what its
// input gradients keep for its weight gradients.
#pragma once
#include "plan/gemm_overlap.h"
#include "plan/layout.h"
#include "plan/model_size.h"
#include "plan/options/parallel_options.h"
#include "plan/options/recompute_options.h"
#include "spec/model_spec.h"

namespace mtrain::plan {

struct RunPlan;

// Counts the layers of a rank.
struct RankLayers {
  int64_t dense = 0, moe = 0;          // layers without and with experts
  int64_t float8 = 0, float8_moe = 0;  // layers with 8-bit GEMMs: of all, and of those with experts

  int64_t all() const { return dense + moe; }
  Count float8_share() const { return all() > 0 ? Count(float8) / Count(all()) : 0; }
  Count float8_moe_share() const { return moe > 0 ? Count(float8_moe) / Count(moe) : 0; }
};

// `moe`: whether the layer has experts.
class LayerActivations {
 public:
  // `rows`: what this rank's experts compute, per token of the rank. The plan must outlive this
  // object.
  LayerActivations(const RunPlan& plan, const RankLayers& layers, Count rows);

  // Bytes per token that a layer keeps from forward to backward: the inputs of its GEMMs that are
  // not recomputed, and the statistics of norms and attention.
  Count kept_per_token(bool moe) const;
  // Bytes per token that a router keeps: logits, sums, choices and weights. With a capacity also
  // the choices that are left after tokens are dropped.
  Count router_per_token() const;
  // Bytes per token that exist only while one layer runs backward: gradients of its widest
  // activations. The gradients inside the MLP are freed when its first GEMM runs backward. Under
  // sequence parallelism that GEMM has the input and the gradient of all tp ranks' tokens.
  Count passing_per_token(bool moe) const;
  // Bytes per token that a layer keeps from its input gradients to its weight gradients: the inputs
  // of its GEMMs and the gradients of their outputs. Under sequence parallelism these are of all tp
  // ranks' tokens.
  Count wgrad_inputs_per_token(bool moe) const {
    return mlp_wgrad_inputs_per_token(moe) + rest_wgrad_inputs_per_token(moe);
  }
  Count mlp_wgrad_inputs_per_token(bool moe) const;   // for an MLP, or routed experts
  Count rest_wgrad_inputs_per_token(bool moe) const;  // for attention, router and shared expert

  // Elements per token. Under sequence parallelism norms, residuals and dropout have a shard of the
  // tokens.
  Count hidden() const;
  Count residual() const;
  Count kv_width() const;
  Count qkv_width() const;
  bool adapts(spec::Projection p) const;
  Count adapter_results() const;
  Count dropped_inputs(bool attention, bool moe) const;
  Count inputs(bool moe) const;  // inputs of an MLP's activation function: 2 if it has a gate
  // Returns the share of the tokens' rows that are on this rank, if loads are balanced: 1 / tp if
  // each tp rank has undivided experts and the rows of its own tokens; otherwise 1.
  Count row_share() const;
  bool spreads_rows() const;  // whether other ranks' rows come to this rank's experts
  bool uses(ContextMethod method) const;
  // The rank's own shard of the residual stream, which exists beside the gathered one; 0 if all
  // ranks have all tokens.
  Count sharded_residual() const;

 private:
  bool recomputes_head_norms() const;
  bool keeps_norms() const;
  Count kept_of_norms() const;
  bool keeps_activation(bool moe) const;
  Count attention_width() const;  // of the core's result
  Count latent_width() const;     // of the vectors of latent attention
  Count travelling_rows() const;
  Count width(bool moe) const;
  Count output_gradient(LayerGemm gemm, bool bias) const;
  Count expert_row_bytes() const;
  Count context_kept() const;

  const RunPlan& plan_;
  const RecomputeOptions& recompute_;
  const Layout& l_;
  // All layers of a kind are alike. In a model without layers of a kind, mlp_ or experts_ is empty.
  const spec::LayerSpec& layer_;
  const spec::GroupedAttention& attention_;
  const spec::DenseMlp mlp_;
  const spec::Experts experts_;
  const RankLayers layers_;
  const Count e_, tp_;  // bytes of an element of the compute type; ranks of tp
  const Count rows_;    // rows of this rank's experts, per token of this rank
};

}  // namespace mtrain::plan
