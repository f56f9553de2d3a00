// Estimates by formula what a layer keeps for each token of a micro-batch on a rank: from forward
// to backward, while its backward runs, and from its input gradients to its weight gradients.
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
  int64_t dense = 0, moe = 0;          // without and with experts
  int64_t float8 = 0, float8_moe = 0;  // of all, and of those with experts: with 8-bit GEMMs

  int64_t all() const { return dense + moe; }
  Count float8_share() const { return all() > 0 ? Count(float8) / Count(all()) : 0; }
  Count float8_moe_share() const { return moe > 0 ? Count(float8_moe) / Count(moe) : 0; }
};

// `moe` asks for a layer with experts.
class LayerActivations {
 public:
  // A rank's experts have `rows` rows for each of its tokens. The plan must outlive this.
  LayerActivations(const RunPlan& plan, const RankLayers& layers, Count rows);

  // Bytes per token that a layer keeps from forward to backward: the inputs of its GEMMs that are
  // not computed again, and statistics.
  Count kept_per_token(bool moe) const;
  // Bytes per token of a router's logits, sums, choices and weights, and of choices that are left.
  Count router_per_token() const;
  // Bytes per token that live only while one layer runs backward: gradients of its widest
  // activations. The gradients inside the MLP are gone when its first GEMM runs backward. Under
  // sequence parallelism that GEMM has the input and the gradient of all ranks' tokens.
  Count passing_per_token(bool moe) const;
  // Bytes per token that a layer keeps from its input gradient to its weight gradient: the inputs
  // of its GEMMs and the gradients of their outputs, under sequence parallelism for all ranks'
  // tokens.
  Count behind_per_token(bool moe) const {
    return mlp_behind_per_token(moe) + rest_behind_per_token(moe);
  }
  Count mlp_behind_per_token(bool moe) const;   // of an MLP, or of routed experts
  Count rest_behind_per_token(bool moe) const;  // of attention, router and shared expert

  // Elements per token. Norms, residuals and dropout see a shard of the tokens under sequence
  // parallelism.
  Count hidden() const;
  Count residual() const;
  Count kv_width() const;
  Count qkv_width() const { return attention_width() + kv_width(); }
  Count inputs(bool moe) const;  // of an MLP: 2 if it has a gate
  // Returns which part of the tokens' choices has rows on this rank, if loads are balanced: under
  // tp with whole experts, those of its own tokens; with parts of each, all.
  Count row_share() const;
  bool spreads_rows() const;  // whether other ranks' rows come to this rank's experts
  bool uses(ContextMethod method) const;

 private:
  bool recomputes_head_norms() const;
  bool keeps_norms() const;
  Count kept_of_norms() const;
  bool keeps_activation(bool moe) const;
  Count sharded_residual() const;
  Count attention_width() const;
  Count travelling_rows() const;
  Count width(bool moe) const;
  Count output_gradient(LayerGemm gemm, bool bias) const;
  Count expert_row_bytes() const;
  Count context_kept() const;

  const RunPlan& plan_;
  const RecomputeOptions& recompute_;
  const Layout& l_;
  // The layers of a kind are alike; a model without a kind has an empty MLP of it.
  const spec::LayerSpec& layer_;
  const spec::GroupedAttention& attention_;
  const spec::DenseMlp mlp_;
  const spec::Experts experts_;
  const RankLayers layers_;
  const Count e_, tp_;  // bytes of an element of the compute type; ranks of tp
  const Count rows_;    // of this rank's experts, per token of this rank
};

}  // namespace mtrain::plan
