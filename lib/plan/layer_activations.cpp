#include "plan/layer_activations.h"

#include <algorithm>

#include "base/error.h"
#include "plan/expert_traffic.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

LayerActivations::LayerActivations(const recipe::Recipe& r, const RunPlan& plan,
                                   const RankLayers& layers, Count rows)
    : r_(r),
      m_(r.model),
      plan_(plan),
      l_(plan.layout),
      layers_(layers),
      e_(Count(dtype_size(plan.compute_dtype))),
      tp_(Count(plan.layout.tp)),
      rows_(rows) {}

Count LayerActivations::hidden() const { return Count(m_.hidden_size); }

Count LayerActivations::residual() const {
  return hidden() / (r_.distributed.sequence_parallel ? tp_ : 1);
}

// Elements per token of a rank's own tokens that exist beside the gathered ones.
Count LayerActivations::sharded_residual() const {
  return r_.distributed.sequence_parallel && l_.tp > 1 ? residual() : 0;
}

Count LayerActivations::row_share() const { return l_.whole_experts() ? 1 / tp_ : 1; }

Count LayerActivations::attention_width() const {
  return Count(m_.num_attention_heads * m_.head_dim()) / tp_;
}

Count LayerActivations::kv_width() const {
  return 2 * Count(m_.head_dim()) * std::max<Count>(1, Count(m_.kv_heads()) / tp_);
}

bool LayerActivations::recomputes(recipe::RecomputeModule module) const {
  return r_.recompute.selects(module);
}

// Whether backward computes the normalized queries and keys again.
bool LayerActivations::recomputes_head_norms() const {
  return m_.qk_layernorm && recomputes(recipe::RecomputeModule::core_attn) &&
         recomputes(recipe::RecomputeModule::layernorm);
}

// Whether it computes the outputs of a layer's first MLP GEMM again.
bool LayerActivations::recomputes_mlp(bool moe) const {
  return !moe && recomputes(recipe::RecomputeModule::mlp);
}

bool LayerActivations::keeps_norms() const {
  return !plan_.recompute.cheap && !recomputes(recipe::RecomputeModule::layernorm);
}

bool LayerActivations::input_norms() const {
  return m_.norm_placement != recipe::NormPlacement::post;
}

bool LayerActivations::output_norms() const {
  return m_.norm_placement != recipe::NormPlacement::pre;
}

// Elements per token that attention, and so the MLP, keeps around its norms: what it reads of the
// residual stream, that through a norm, and the input of the norm of its output.
Count LayerActivations::kept_of_norms() const {
  return residual() * (1 + (input_norms() && keeps_norms() ? 1 : 0) + (output_norms() ? 1 : 0));
}

// A gelu in its tanh form is computed with the GEMMs around it, and its output never kept.
bool LayerActivations::keeps_activation(bool moe) const {
  return !plan_.recompute.cheap && !moe && !recomputes_mlp(moe) &&
         (m_.gated() || !plan_.model.gelu_tanh);
}

Count LayerActivations::kept_per_token(bool moe) const {
  const bool core = recomputes(recipe::RecomputeModule::core_attn),
             normalized = m_.qk_layernorm && !recomputes_head_norms();
  const Count heads = Count(m_.num_attention_heads) / tp_,
              norms = m_.norm_placement == recipe::NormPlacement::sandwich ? 4 : 2,
              rows = m_.qk_layernorm_all_heads ? 2 : heads + kv_width() / Count(2 * m_.head_dim());
  const Count statistics = norms * (m_.normalization == recipe::Normalization::layernorm ? 2 : 1) +
                           (core ? 0 : heads) + (normalized ? rows : 0);
  const Count attention = kept_of_norms() + qkv_width() * (normalized ? 2 : 1) +
                          (core ? 0 : attention_width()) + context_kept();
  Count mlp = kept_of_norms(), expert_rows = 0;
  if (keeps_activation(moe)) mlp += Count(m_.ffn_size()) / tp_;
  if (moe && !recomputes(recipe::RecomputeModule::moe)) {
    expert_rows += rows_ * row_share() * hidden();
    mlp += rows_ * inputs() * expert_ffn() / tp_;
    if (!plan_.recompute.cheap && !recomputes(recipe::RecomputeModule::moe_act))
      expert_rows += rows_ * expert_ffn() / tp_;
  } else if (!moe && !recomputes_mlp(moe)) {
    mlp += inputs() * Count(m_.ffn_size()) / tp_;
  }
  if (moe && m_.moe.shared_expert_ffn_hidden_size &&
      !recomputes(recipe::RecomputeModule::shared_experts))
    mlp += (inputs() + (plan_.recompute.cheap ? 0 : 1)) *
               Count(*m_.moe.shared_expert_ffn_hidden_size) / tp_ +
           (m_.moe.shared_expert_gate ? residual() : 0);
  // The logits; and for each choice its expert, weight, row and the row's choice and weight.
  const Count router =
      moe ? 4 * (Count(m_.moe.num_experts) + 5 * Count(m_.moe.router_topk)) * residual() / hidden()
          : 0;
  return (attention + mlp) * e_ + expert_rows * expert_row_bytes() + statistics * 4 + router;
}

Count LayerActivations::router_per_token() const {
  const Count choices = m_.moe.expert_capacity_factor ? 3 : 2;
  return (Count(dtype_size(plan_.model.experts.logits)) * Count(m_.moe.num_experts) +
          4 * (choices * Count(m_.moe.router_topk) + 2)) *
         residual() / hidden();
}

Count LayerActivations::passing_per_token(bool moe) const {
  const Count width = moe ? rows_ * expert_ffn() : Count(m_.ffn_size());
  // The gradients of the experts' rows, and of the rows of which they are made.
  const Count dispatched = moe ? (rows_ + travelling_rows()) * row_share() * hidden() : 0;
  const bool rows_again = moe && recomputes(recipe::RecomputeModule::moe);
  const Count again =
      recomputes_mlp(moe) || rows_again
          ? inputs() * width / tp_ + residual() + (rows_again ? rows_ * row_share() * hidden() : 0)
          : 0;
  // The activation's output is quantized while it and the other gradients exist.
  const Count quantized = moe ? layers_.float8_moe_share() * width / tp_ / e_ : 0;
  // The gradient behind the norm of the output, and the norm's output where it is computed again.
  const Count behind_norm = output_norms() ? residual() : 0,
              normalized = input_norms() && !keeps_norms() ? residual() : 0;
  const Count mlp = std::max((inputs() + 1) * width / tp_ + quantized + hidden() +
                                 sharded_residual() + behind_norm + again,
                             2 * hidden() + normalized + 2 * sharded_residual()) +
                    dispatched;
  const Count attention =
      qkv_width() * (recomputes_head_norms() ? 2 : 1) + 2 * attention_width() + 2 * hidden();
  return std::max(mlp, attention) * e_;
}

Count LayerActivations::inputs() const { return m_.gated() ? 2 : 1; }

// For each token: the rows that leave this rank or arrive.
Count LayerActivations::travelling_rows() const {
  if (!spreads_rows()) return 0;
  using enum TokenDispatch;
  switch (l_.ep == 1 ? all_gather : plan_.experts.dispatcher) {
    case all_to_all: return expert_rows_per_token(plan_);
    case all_gather: return Count(l_.ep);
    case flex: return expert_ranks_per_token(plan_);
  }
  throw BugError("token_dispatcher");
}

Count LayerActivations::expert_ffn() const {
  return Count(m_.moe.ffn_hidden_size.value_or(m_.ffn_size()));
}

Count LayerActivations::mlp_behind_per_token(bool moe) const {
  const Count width = moe ? rows_ * expert_ffn() : Count(m_.ffn_size());
  const Count experts = moe ? rows_ * row_share() : 1;
  const bool bias = m_.fc_bias();
  return (experts * hidden() + width / tp_) * (moe ? expert_row_bytes() : e_) +
         inputs() * width / tp_ * output_gradient(LayerGemm::fc1, bias) +
         experts * hidden() * output_gradient(LayerGemm::fc2, bias);
}

Count LayerActivations::rest_behind_per_token(bool moe) const {
  // The router's input, which is the shared expert's, too, and the gradients of its logits.
  const Count router = moe ? residual() * (1 + Count(m_.moe.num_experts) / hidden()) : 0;
  const Count shared_ffn = moe ? Count(m_.moe.shared_expert_ffn_hidden_size.value_or(0)) : 0;
  const Count shared = shared_ffn > 0 ? hidden() + (inputs() + 1) * shared_ffn / tp_ : 0;
  return (hidden() + attention_width() + router + shared) * e_ +
         qkv_width() * output_gradient(LayerGemm::qkv, m_.qkv_bias()) +
         hidden() * output_gradient(LayerGemm::proj, m_.proj_bias());
}

// Bytes of an element of an output's gradient while it waits for the weight gradient. The
// gradient is kept in 8 bits if no bias needs its sums and one GEMM computes the input's
// gradient.
Count LayerActivations::output_gradient(LayerGemm gemm, bool bias) const {
  const bool chunked = plan_.overlap.tp_gemm_overlap.at(gemm, Pass::dgrad).chunked();
  return bias || chunked ? e_ : e_ - layers_.float8_share() * (e_ - 1 - float8_scales());
}

// Bytes of an element of the rows that the experts' products read.
Count LayerActivations::expert_row_bytes() const {
  return e_ - layers_.float8_moe_share() * (e_ - 1);
}

Count LayerActivations::float8_scales() const {
  switch (plan_.fp8.scales) {
    case Fp8Options::Scales::tensors: return 0;
    case Fp8Options::Scales::blocks_of_128: return 4.0 / 128;
    case Fp8Options::Scales::blocks_of_32: return 1.0 / 32;
  }
  return 0;
}

bool LayerActivations::spreads_rows() const {
  return l_.ep > 1 || (l_.expert_tp > 1 && r_.distributed.sequence_parallel);
}

bool LayerActivations::uses(ContextMethod type) const {
  const auto& types = r_.distributed.cp_comm_type;
  return l_.cp > 1 && std::find(types.begin(), types.end(), type) != types.end();
}

// Elements per token of a second copy of attention's output, which a layer keeps if its core
// attends in another layout than the projections have.
Count LayerActivations::context_kept() const {
  const auto& types = r_.distributed.cp_comm_type;
  if (l_.cp == 1 || recomputes(recipe::RecomputeModule::core_attn)) return 0;
  const auto exchanged = std::count_if(types.begin(), types.end(), [](ContextMethod t) {
    return t == ContextMethod::a2a || t == ContextMethod::a2a_p2p;
  });
  return Count(exchanged) / Count(types.size()) * attention_width();
}

}  // namespace mtrain::plan
