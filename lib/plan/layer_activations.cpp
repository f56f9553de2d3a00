#include "plan/layer_activations.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "plan/expert_traffic.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {
template <class T>
T value_or_empty(const T* value) {
  return value ? *value : T{};
}
}  // namespace

LayerActivations::LayerActivations(const RunPlan& plan, const RankLayers& layers, Count rows)
    : plan_(plan),
      recompute_(plan.recompute),
      l_(plan.layout),
      layer_(plan.model.layer(0)),
      attention_(layer_.grouped()),
      mlp_(value_or_empty(plan.model.dense_mlp())),
      experts_(value_or_empty(plan.model.experts())),
      layers_(layers),
      e_(Count(dtype_size(plan.compute_dtype))),
      tp_(Count(plan.layout.tp)),
      rows_(rows) {}

Count LayerActivations::hidden() const { return Count(plan_.model.hidden); }

Count LayerActivations::residual() const {
  return hidden() / (plan_.tensor.sequence_parallel ? tp_ : 1);
}

Count LayerActivations::sharded_residual() const {
  return plan_.tensor.sequence_parallel && l_.tp > 1 ? residual() : 0;
}

Count LayerActivations::row_share() const { return l_.undivided_experts() ? 1 / tp_ : 1; }

Count LayerActivations::attention_width() const { return Count(attention_.out_width()) / tp_; }

Count LayerActivations::qkv_width() const {
  return Count(attention_.heads * attention_.head_dim) / tp_ + kv_width();
}

Count LayerActivations::latent_width() const {
  if (!attention_.latent) return 0;
  return Count(attention_.latent->q_rank + attention_.latent->kv_rank) * residual() / hidden();
}

Count LayerActivations::kv_width() const {
  return Count(attention_.head_dim + attention_.value_dim()) *
         std::max<Count>(1, Count(attention_.kv_heads) / tp_);
}

// Whether backward recomputes the normalized queries and keys.
bool LayerActivations::recomputes_head_norms() const {
  return attention_.head_norm != spec::HeadNorm::none && recompute_.attention_core &&
         recompute_.norms;
}

bool LayerActivations::keeps_norms() const { return !recompute_.cheap && !recompute_.norms; }

// Elements per token that attention keeps around its norms, and the MLP, too: the input from the
// residual stream, the normalized input, and the input of the output's norm.
Count LayerActivations::kept_of_norms() const {
  return residual() *
         (1 + (layer_.input_norms && keeps_norms() ? 1 : 0) + (layer_.output_norms ? 1 : 0));
}

// The tanh form of gelu is fused with the GEMMs around it, and its output is never kept.
bool LayerActivations::keeps_activation(bool moe) const {
  return !recompute_.cheap && !moe && !recompute_.mlp &&
         mlp_.activation != spec::Activation::gelu_tanh;
}

Count LayerActivations::kept_per_token(bool moe) const {
  using enum spec::HeadNorm;
  const bool core = recompute_.attention_core,
             normalized = attention_.head_norm != none && !recomputes_head_norms();
  const Count heads = Count(attention_.heads) / tp_,
              norms = layer_.input_norms && layer_.output_norms ? 4 : 2,
              rows = attention_.head_norm == all_heads
                         ? 2
                         : heads + kv_width() / Count(attention_.head_dim + attention_.value_dim());
  const Count statistics = norms * (plan_.model.norm.kind == NormKind::layer ? 2 : 1) +
                           (core ? 0 : heads) + (normalized ? rows : 0);
  // Recomputation of latent attention's heads keeps the elements that all keys share.
  const Count qkv =
      recompute_.latent_up && attention_.latent ? Count(attention_.latent->rope_dim) : qkv_width();
  const Count attention = kept_of_norms() + qkv * (normalized ? 2 : 1) +
                          (core ? 0 : attention_width()) + context_kept() +
                          (keeps_norms() ? 2 : 1) * latent_width();  // their norms' inputs, outputs
  Count mlp = kept_of_norms(), expert_rows = 0;
  if (keeps_activation(moe)) mlp += width(false) / tp_;
  if (moe && !recompute_.experts) {
    expert_rows += rows_ * row_share() * hidden();
    mlp += inputs(true) * width(true) / tp_;
    if (!recompute_.cheap && !recompute_.experts_act) expert_rows += width(true) / tp_;
  } else if (!moe && !recompute_.mlp) {
    mlp += inputs(false) * width(false) / tp_;
  }
  if (moe && experts_.shared_ffn > 0 && !recompute_.shared_expert)
    mlp += (inputs(true) + (recompute_.cheap ? 0 : 1)) * Count(experts_.shared_ffn) / tp_ +
           (experts_.shared_gate ? residual() : 0);
  // The router keeps the logits. For each choice it keeps the expert, the weight and the row, and
  // for that row its choice and weight.
  const Count router =
      moe ? 4 * (Count(experts_.count) + 5 * Count(experts_.per_token)) * residual() / hidden() : 0;
  return (attention + mlp) * e_ + expert_rows * expert_row_bytes() + statistics * 4 + router;
}

Count LayerActivations::router_per_token() const {
  const Count choices = experts_.capacity_factor > 0 ? 3 : 2;
  return (Count(dtype_size(experts_.logits)) * Count(experts_.count) +
          4 * (choices * Count(experts_.per_token) + 2)) *
         residual() / hidden();
}

Count LayerActivations::passing_per_token(bool moe) const {
  const Count width = this->width(moe);
  // The gradients of the experts' rows, and of the rows that travel between ranks.
  const Count dispatched = moe ? (rows_ + travelling_rows()) * row_share() * hidden() : 0;
  const bool resends_rows = moe && recompute_.experts;
  const Count recomputed = (!moe && recompute_.mlp) || resends_rows
                               ? inputs(moe) * width / tp_ + residual() +
                                     (resends_rows ? rows_ * row_share() * hidden() : 0)
                               : 0;
  // The activation's output is quantized while it and the other gradients exist.
  const Count quantized = moe ? layers_.float8_moe_share() * width / tp_ / e_ : 0;
  // The gradient of the output norm's or multiplier's input, and the input norm's output if it is
  // recomputed.
  const bool copies = layer_.output_norms || plan_.model.residual_scale != 1;
  const Count norm_input_gradient = copies ? residual() : 0,
              normalized = layer_.input_norms && !keeps_norms() ? residual() : 0;
  const Count mlp = std::max((inputs(moe) + 1) * width / tp_ + quantized + hidden() +
                                 sharded_residual() + norm_input_gradient + recomputed,
                             2 * hidden() + normalized + 2 * sharded_residual()) +
                    dispatched + (moe ? adapter_results() : 0) + dropped_inputs(false, moe);
  const Count attention = qkv_width() * (recomputes_head_norms() || attention_.latent ? 2 : 1) +
                          2 * attention_width() + 2 * hidden() + dropped_inputs(true, moe);
  return std::max(mlp, attention) * e_;
}

// Whether some layer has an adapter of that projection.
bool LayerActivations::adapts(spec::Projection p) const {
  return plan_.model.lora && std::ranges::any_of(plan_.model.lora->layers, [&](const auto& l) {
           return std::ranges::count(l, p) > 0;
         });
}

// The part of the experts' results, or of their inputs' gradients, that adapters compute before it
// is added.
Count LayerActivations::adapter_results() const {
  const Count rows = rows_ * row_share() * hidden(), width = this->width(true) / tp_;
  return std::max(
      adapts(spec::Projection::expert_gate_up) ? std::max(inputs(true) * width, rows) : 0,
      adapts(spec::Projection::expert_down) ? std::max(rows, width) : 0);
}

// The copies of inputs that dropout makes, one for each adapter of the linears of attention, or of
// an MLP or shared expert.
Count LayerActivations::dropped_inputs(bool attention, bool moe) const {
  if (!plan_.model.lora || plan_.model.lora->dropout == 0) return 0;
  using enum spec::Projection;
  const auto adapters = [&](std::initializer_list<spec::Projection> all) {
    return Count(std::ranges::count_if(all, [&](spec::Projection p) { return adapts(p); }));
  };
  if (attention && attention_.latent)
    return adapters({query_down, latent_down}) * residual() +
           adapters({query}) *
               (attention_.latent->q_rank > 0 ? Count(attention_.latent->q_rank) : residual()) +
           adapters({latent_up}) * Count(attention_.latent->kv_rank) +
           adapters({proj}) * attention_width();
  if (attention)
    return adapters({qkv, query, key, value}) * residual() + adapters({proj}) * attention_width();
  const Count width = moe ? Count(experts_.shared_ffn) : this->width(false);
  return width == 0 ? 0
                    : adapters({gate_up, gate, up}) * residual() + adapters({down}) * width / tp_;
}

Count LayerActivations::inputs(bool moe) const { return moe || mlp_.gated() ? 2 : 1; }

// Rows per token that leave this rank or arrive.
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

// Elements per token of an MLP's activation. With experts, the activations of all rows on the rank.
Count LayerActivations::width(bool moe) const {
  return moe ? rows_ * Count(experts_.ffn) : Count(mlp_.ffn);
}

Count LayerActivations::mlp_wgrad_inputs_per_token(bool moe) const {
  const Count width = this->width(moe);
  const Count experts = moe ? rows_ * row_share() : 1;
  const bool bias = !moe && mlp_.bias;
  return (experts * hidden() + width / tp_) * (moe ? expert_row_bytes() : e_) +
         inputs(moe) * width / tp_ * output_gradient(LayerGemm::fc1, bias) +
         experts * hidden() * output_gradient(LayerGemm::fc2, bias) +
         (moe ? 0 : dropped_inputs(false, false) * e_);
}

Count LayerActivations::rest_wgrad_inputs_per_token(bool moe) const {
  // The router's input, which is also the shared expert's, and the gradients of the router's
  // logits.
  const Count router = moe ? residual() * (1 + Count(experts_.count) / hidden()) : 0;
  const Count shared_ffn = moe ? Count(experts_.shared_ffn) : 0;
  const Count shared = shared_ffn > 0 ? hidden() + (inputs(moe) + 1) * shared_ffn / tp_ : 0;
  Count qkv_inputs = hidden(), qkv_outputs = qkv_width();
  if (attention_.latent) {
    // All rows of the latents, the rank's rows of their gradients, and the input of the first
    // linears, of which a linear that all ranks have takes the rank's rows.
    const spec::LatentProjections& l = *attention_.latent;
    qkv_inputs = (l.q_rank > 0 ? residual() : hidden()) + Count(l.q_rank + l.kv_rank) +
                 latent_width() + Count(l.rope_dim) * residual() / hidden();
    qkv_outputs -= Count(attention_.heads * l.rope_dim) / tp_;  // of kv_up
  }
  const Count dropped = dropped_inputs(true, moe) + (moe ? dropped_inputs(false, true) : 0);
  return (qkv_inputs + attention_width() + router + shared + dropped) * e_ +
         qkv_outputs * output_gradient(LayerGemm::qkv, attention_.qkv_bias) +
         hidden() * output_gradient(LayerGemm::proj, attention_.proj_bias);
}

// Bytes of an element of an output's gradient while it waits for the weight gradient. The gradient
// is kept in 8 bits if no bias needs its sums and a single GEMM computes the input's gradient.
Count LayerActivations::output_gradient(LayerGemm gemm, bool bias) const {
  const bool chunked = plan_.overlap.tp_gemm_overlap.at(gemm, Pass::dgrad).chunked();
  return bias || chunked
             ? e_
             : e_ - layers_.float8_share() * (e_ - plan_.fp8.formats.gradient.bytes_with_scales());
}

// Bytes of an element of the rows that the experts' GEMMs read.
Count LayerActivations::expert_row_bytes() const {
  return e_ - layers_.float8_moe_share() * (e_ - plan_.fp8.formats.input.bytes_with_scales());
}

bool LayerActivations::spreads_rows() const {
  return l_.ep > 1 || (l_.expert_tp > 1 && plan_.tensor.sequence_parallel);
}

bool LayerActivations::uses(ContextMethod method) const {
  return l_.cp > 1 && plan_.context.uses(method);
}

// Elements per token of a second copy of attention's output. A layer keeps it if its attention core
// has a different layout from the projections.
Count LayerActivations::context_kept() const {
  using enum ContextMethod;
  const auto& methods = plan_.context.methods;
  if (l_.cp == 1 || recompute_.attention_core) return 0;
  const auto exchanged =
      std::ranges::count_if(methods, [](auto m) { return m == a2a || m == a2a_p2p; });
  return Count(exchanged) / Count(methods.size()) * attention_width();
}

}  // namespace mtrain::plan
