#include "plan/memory.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "base/matmul_workspace.h"
#include "plan/attention_workspace.h"
#include "plan/expert_traffic.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

// In this class T_ counts the tokens of a micro-batch on this rank, and e_ the bytes of an element
// of the compute type.
class Estimator {
 public:
  // The experts of the rank have `load` times as many rows as the mean over the ranks of ep.
  Estimator(const Recipe& r, const RunPlan& plan, int64_t vocab, int64_t pp_rank, double load)
      : r_(r),
        m_(r.model),
        plan_(plan),
        l_(plan.layout),
        dp_(plan.data_parallel),
        size_(count_parameters(r.model, padded_vocab(vocab, l_.tp))),
        padded_vocab_(padded_vocab(vocab, l_.tp)),
        shape_(plan.schedule_shape),
        pp_rank_(pp_rank),
        stages_(stages_of_rank(shape_, pp_rank)),
        e_(Count(dtype_size(plan.compute_dtype))),
        tp_(Count(l_.tp)),
        T_(Count(l_.micro_batch) * Count(plan.sample_length) / Count(l_.cp)),
        rows_(expert_rows_per_token(plan) * load) {
    int64_t first = 0;
    for (int64_t s = 0; s < l_.stages; ++s) {
      const int64_t layers = l_.layers_of_stage.empty() ? 0 : l_.layers_of_stage[size_t(s)];
      if (std::find(stages_.begin(), stages_.end(), s) != stages_.end())
        for (int64_t i = first; i < first + layers; ++i) {
          ++(m_.has_experts(i) ? moe_layers_ : dense_layers_);
          float8_layers_ += plan.fp8.has(i);
          float8_moe_layers_ += plan.fp8.has(i) && m_.has_experts(i);
        }
      first += layers;
    }
  }

  MemoryEstimate estimate() const {
    MemoryEstimate out;
    const Spread dense{dense_parameters(), data_ranks(l_.dp_shard * l_.cp)},
        experts{Count(moe_layers_) * experts_here(), data_ranks(expert_shards())};
    out.parameters = dense.parameters + experts.parameters;
    for (const Spread& s : {dense, experts}) {
      const Count moments = plan_.optimizer.moments == DType::bf16 ? 4 : 8,
                  master = e_ == 4 || !r_.optimizer.master_weights ? 0 : 4;
      const bool own_only = s.ranks > 1 && dp_.shards >= ShardLevel::gradients;
      out.params += s.parameters * e_ / (dp_.shards == ShardLevel::parameters ? s.ranks : 1);
      out.grads += s.parameters * 4 / (own_only ? s.ranks : 1);
      if (own_only && defers_reduction()) out.grads += s.parameters * 4;
      out.optimizer +=
          s.parameters * (moments + master) / (dp_.shards >= ShardLevel::optimizer ? s.ranks : 1);
    }
    out.grads += passing_gradients();
    // The head's logits are gone before the layers run backward.
    const Count passing =
        std::max(passing_per_token(false), moe_layers_ ? passing_per_token(true) : 0);
    const Count backward = T_ * (recomputed_at_once() + passing);
    out.activations = T_ * (kept_per_token() + (has_head() ? 2 * hidden() * e_ + 4 : 0)) + backward;
    out.logits = has_head() ? std::max<Count>(0, logits() - backward) + deferred() : 0;
    out.buffers = data_buffers() + reduction_buffers() + context_buffers() + pipeline_buffers() +
                  expert_buffers() + float8_weights();
    out.workspace = workspace();
    return out;
  }

 private:
  struct Spread {
    Count parameters;  // elements of this rank before they are sharded
    Count ranks;       // the ranks over which they are sharded
  };

  // The ranks that own different parts of the same experts.
  int64_t expert_shards() const { return l_.ep_shard / std::max<int64_t>(1, l_.dp_replicate); }
  bool first_stage() const { return stages_.front() == 0; }
  bool has_head() const { return stages_.back() == l_.stages - 1; }
  int64_t layers() const { return dense_layers_ + moe_layers_; }
  Count hidden() const { return Count(m_.hidden_size); }
  // Norms, residuals and dropout see a shard of the tokens under sequence parallelism.
  Count residual() const { return hidden() / (r_.distributed.sequence_parallel ? tp_ : 1); }
  // Elements per token of a rank's own tokens that exist beside the gathered ones.
  Count sharded_residual() const {
    return r_.distributed.sequence_parallel && l_.tp > 1 ? residual() : 0;
  }
  // Returns which part of the tokens' choices has rows on this rank, if loads are balanced: under
  // tp with whole experts, those of its own tokens; with parts of each, all.
  Count row_share() const { return l_.whole_experts() ? 1 / tp_ : 1; }
  Count attention_width() const { return Count(m_.num_attention_heads * m_.head_dim()) / tp_; }
  Count kv_width() const {
    return 2 * Count(m_.head_dim()) * std::max<Count>(1, Count(m_.kv_heads()) / tp_);
  }
  Count qkv_width() const { return attention_width() + kv_width(); }
  static Count data_ranks(int64_t ranks) { return Count(std::max<int64_t>(1, ranks)); }

  Count dense_parameters() const {
    const auto layer = [&](const LayerParameters& p) {
      return p.on_rank(tp_, Count(m_.kv_heads()));
    };
    Count n = Count(dense_layers_) * layer(size_.dense) + Count(moe_layers_) * layer(size_.moe);
    // A tied table is on the first and on the last stage.
    if (first_stage()) n += size_.token_table / tp_ + size_.position_table;
    if (has_head()) {
      n += size_.final_norm + size_.output / tp_;
      if (size_.output == 0 && !first_stage()) n += size_.token_table / tp_;
    }
    return n;
  }

  // Whether whole gradients of all layers add up until the last micro-batch.
  bool defers_reduction() const {
    return dp_.shards >= ShardLevel::gradients && dp_.defer_reduce && l_.step_micro_batches() > 1;
  }

  bool recomputes(recipe::RecomputeModule module) const { return r_.recompute.selects(module); }

  // Whether backward computes the normalized queries and keys again.
  bool recomputes_head_norms() const {
    return m_.qk_layernorm && recomputes(recipe::RecomputeModule::core_attn) &&
           recomputes(recipe::RecomputeModule::layernorm);
  }
  // Whether it computes the outputs of a layer's first MLP GEMM again.
  bool recomputes_mlp(bool moe) const { return !moe && recomputes(recipe::RecomputeModule::mlp); }

  bool keeps_norms() const {
    return !plan_.recompute.cheap && !recomputes(recipe::RecomputeModule::layernorm);
  }
  // A gelu in its tanh form is computed with the GEMMs around it, and its output never kept.
  bool keeps_activation(bool moe) const {
    return !plan_.recompute.cheap && !moe && !recomputes_mlp(moe) &&
           (m_.gated() || !plan_.model.gelu_tanh);
  }

  // Bytes per token that a layer keeps from forward to backward: the inputs of its GEMMs that are
  // not computed again, and statistics.
  Count kept_per_token(bool moe) const {
    const bool core = recomputes(recipe::RecomputeModule::core_attn),
               normalized = m_.qk_layernorm && !recomputes_head_norms();
    const Count heads = Count(m_.num_attention_heads) / tp_;
    const Count statistics = 2 * (m_.normalization == recipe::Normalization::layernorm ? 2 : 1) +
                             (core ? 0 : heads) +
                             (normalized ? heads + kv_width() / Count(2 * m_.head_dim()) : 0);
    const Count attention = residual() * (keeps_norms() ? 2 : 1) +
                            qkv_width() * (normalized ? 2 : 1) + (core ? 0 : attention_width()) +
                            context_kept();
    Count mlp = residual() * (keeps_norms() ? 2 : 1), expert_rows = 0;
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
    const Count router = moe ? 4 * (Count(m_.moe.num_experts) + 5 * Count(m_.moe.router_topk)) *
                                   residual() / hidden()
                             : 0;
    return (attention + mlp) * e_ + expert_rows * expert_row_bytes() + statistics * 4 + router;
  }

  // Bytes per token of a router's logits, sums, choices and weights, and of choices that are left.
  Count router_per_token() const {
    const Count choices = m_.moe.expert_capacity_factor ? 3 : 2;
    return (Count(dtype_size(plan_.model.experts.logits)) * Count(m_.moe.num_experts) +
            4 * (choices * Count(m_.moe.router_topk) + 2)) *
           residual() / hidden();
  }

  // Bytes per token that live only while one layer runs backward: gradients of its widest
  // activations. The gradients inside the MLP are gone when its first GEMM runs backward. Under
  // sequence parallelism that GEMM has the input and the gradient of all ranks' tokens.
  Count passing_per_token(bool moe) const {
    const Count width = moe ? rows_ * expert_ffn() : Count(m_.ffn_size());
    // The gradients of the experts' rows, and of the rows of which they are made.
    const Count dispatched = moe ? (rows_ + travelling_rows()) * row_share() * hidden() : 0;
    const bool rows_again = moe && recomputes(recipe::RecomputeModule::moe);
    const Count again = recomputes_mlp(moe) || rows_again
                            ? inputs() * width / tp_ + residual() +
                                  (rows_again ? rows_ * row_share() * hidden() : 0)
                            : 0;
    // The activation's output is quantized while it and the other gradients exist.
    const Count quantized = moe ? float8_moe_share() * width / tp_ / e_ : 0;
    const Count mlp =
        std::max((inputs() + 1) * width / tp_ + quantized + hidden() + sharded_residual() + again,
                 2 * hidden() + (keeps_norms() ? 0 : residual()) + 2 * sharded_residual()) +
        dispatched;
    const Count attention =
        qkv_width() * (recomputes_head_norms() ? 2 : 1) + 2 * attention_width() + 2 * hidden();
    return std::max(mlp, attention) * e_;
  }

  Count inputs() const { return m_.gated() ? 2 : 1; }
  // For each token: the rows that leave this rank or arrive.
  Count travelling_rows() const {
    if (!spreads_rows()) return 0;
    using enum ExpertOptions::Dispatcher;
    switch (l_.ep == 1 ? all_gather : plan_.experts.dispatcher) {
      case all_to_all: return expert_rows_per_token(plan_);
      case all_gather: return Count(l_.ep);
      case flex: return expert_ranks_per_token(plan_);
    }
    throw BugError("token_dispatcher");
  }
  Count expert_ffn() const { return Count(m_.moe.ffn_hidden_size.value_or(m_.ffn_size())); }

  bool recomputes_layers() const {
    return r_.recompute.granularity == recipe::RecomputeGranularity::full && layers() > 0;
  }
  int64_t recompute_group() const {
    return r_.recompute.method == recipe::RecomputeMethod::block
               ? 1
               : r_.recompute.num_layers.value_or(1);
  }

  // Bytes per token that all layers of the rank keep, for all micro-batches in flight.
  Count kept_per_token() const {
    Count all = Count(dense_layers_) * kept_per_token(false) +
                Count(moe_layers_) * (moe_layers_ ? kept_per_token(true) : 0);
    if (recomputes_layers()) {
      const int64_t chunks = int64_t(stages_.size());
      const int64_t recomputed =
          r_.recompute.method == recipe::RecomputeMethod::block
              ? std::min(layers(), r_.recompute.num_layers.value_or(layers()) * chunks)
              : layers();
      all = all * Count(layers() - recomputed) / Count(layers()) +
            Count(ceil_div(recomputed, recompute_group())) * residual() * e_;
      if (plan_.recompute.keeps_router)
        all += Count(recomputed) / Count(layers()) * Count(moe_layers_) * router_per_token();
    }
    if (all == 0) return all;
    const Count behind = Count(dense_layers_) * behind_per_token(false) +
                         Count(moe_layers_) * (moe_layers_ ? behind_per_token(true) : 0);
    const auto chunks = Count(stages_.size());
    // Of each pass one layer is under way.
    const Count pair = std::min<Count>(1, 2 * chunks / Count(layers()));
    return all * chunks_held(shape_, pp_rank_, behind / all, pair) / chunks;
  }

  // Bytes per token that a layer keeps from its input gradient to its weight gradient: the inputs
  // of its GEMMs and the gradients of their outputs, under sequence parallelism for all ranks'
  // tokens.
  Count behind_per_token(bool moe) const {
    const Count width = moe ? rows_ * expert_ffn() : Count(m_.ffn_size());
    const Count experts = moe ? rows_ * row_share() : 1;
    const Count mlp = experts * hidden() + width / tp_;
    const bool bias = m_.add_bias_linear;
    return (hidden() + attention_width()) * e_ + mlp * (moe ? expert_row_bytes() : e_) +
           qkv_width() * output_gradient(LayerGemm::qkv, m_.qkv_bias()) +
           hidden() * output_gradient(LayerGemm::proj, m_.proj_bias()) +
           inputs() * width / tp_ * output_gradient(LayerGemm::fc1, bias) +
           experts * hidden() * output_gradient(LayerGemm::fc2, bias);
  }
  // Bytes of an element of an output's gradient while it waits for the weight gradient. The
  // gradient is kept in 8 bits if no bias needs its sums and one GEMM computes the input's
  // gradient.
  Count output_gradient(LayerGemm gemm, bool bias) const {
    const bool chunked = plan_.overlap.tp_gemm_overlap.at(gemm, Pass::dgrad).chunked();
    return bias || chunked ? e_ : e_ - float8_share() * (e_ - 1 - float8_scales());
  }

  // Which part of the rank's layers has 8-bit GEMMs.
  Count float8_share() const { return layers() > 0 ? Count(float8_layers_) / Count(layers()) : 0; }

  // Which part of its layers with experts has 8-bit GEMMs.
  Count float8_moe_share() const {
    return moe_layers_ ? Count(float8_moe_layers_) / Count(moe_layers_) : 0;
  }
  // Bytes of an element of the rows that the experts' products read.
  Count expert_row_bytes() const { return e_ - float8_moe_share() * (e_ - 1); }

  // Bytes of the scales of blocks, for each element along a GEMM's sum.
  Count float8_scales() const {
    switch (plan_.fp8.scales) {
      case Fp8Options::Scales::tensors: return 0;
      case Fp8Options::Scales::blocks_of_128: return 4.0 / 128;
      case Fp8Options::Scales::blocks_of_32: return 1.0 / 32;
    }
    return 0;
  }

  // Bytes per token that the layers of one recomputed group keep.
  Count recomputed_at_once() const {
    if (!recomputes_layers()) return 0;
    return Count(std::min(recompute_group(), layers())) *
           std::max(kept_per_token(false), moe_layers_ ? kept_per_token(true) : 0);
  }

  // Rounded logits exist beside those of the output layer.
  Count logits() const {
    const Count rounded = plan_.logits_dtype ? Count(dtype_size(*plan_.logits_dtype)) : 0;
    return Count(plan_.logits_rows) * (Count(padded_vocab_) / tp_) * (e_ + rounded);
  }

  // Bytes of the logits' gradients and of the output layer's inputs, which are kept to the end of
  // the step where weight gradients are deferred.
  Count deferred() const {
    return Count(plan_.pipeline.deferred_outputs) * T_ * (Count(padded_vocab_) / tp_ + hidden()) *
           e_;
  }

  // Elements of a layer's experts on a rank.
  Count experts_here() const {
    return size_.moe.experts / Count(l_.ep) * size_.moe.expert / Count(l_.expert_tp);
  }
  // Whether other ranks' rows come to this rank's experts.
  bool spreads_rows() const {
    return l_.ep > 1 || (l_.expert_tp > 1 && r_.distributed.sequence_parallel);
  }

  // Elements of whole units that exist beside the sharded ones: `layers_at_once` layers, of as many
  // the experts (or of `experts_at_once`), and the embedding and the head, which have memory of
  // their own. Experts that one rank has alone are not sharded.
  Count whole_units(int64_t layers_at_once, int64_t experts_at_once) const {
    const Count layer = moe_layers_ ? size_.moe.on_rank(tp_, Count(m_.kv_heads()))
                                    : size_.dense.on_rank(tp_, Count(m_.kv_heads()));
    const Count experts =
        expert_shards() > 1 ? Count(std::min(moe_layers_, experts_at_once)) * experts_here() : 0;
    if (l_.gradient_ranks() == 1) return experts;
    Count around = 0;
    if (first_stage()) around += size_.token_table / tp_ + size_.position_table;
    if (has_head()) around += size_.final_norm + size_.output / tp_;
    return Count(std::min(layers(), layers_at_once)) * layer + experts + around;
  }
  // Bytes of whole gradients on their way to their owners.
  Count passing_gradients() const {
    if (dp_.shards < ShardLevel::gradients || !l_.shares_gradients() || defers_reduction())
      return 0;
    const int64_t at_once = dp_.overlap_grad_reduce ? 2 : 1;
    return 4 * whole_units(at_once, at_once);
  }
  // The most parameters of a layer that are reduced at once: neighbours from its end, until a
  // bucket is full.
  Count largest_piece() const {
    if (moe_layers_) return size_.moe.split / 2;
    const Count H = hidden(), A = Count(m_.num_attention_heads * m_.head_dim()),
                KV = 2 * Count(m_.kv_heads() * m_.head_dim()), F = Count(m_.ffn_size());
    const auto bucket = Count(dp_.bucket_size) * tp_;
    Count largest = 0, piece = 0;
    for (const Count matrix : {F * H, inputs() * F * H, A * H, (A + KV) * H}) {
      piece = piece >= bucket ? matrix : piece + matrix;
      largest = std::max(largest, piece);
    }
    return largest;
  }
  // The same of a layer's experts.
  Count largest_expert_piece() const {
    const Count down = experts_here() / (inputs() + 1), gate_up = down * inputs();
    return down >= Count(dp_.bucket_size) ? gate_up : gate_up + down;
  }
  Count reduction_buffers() const {
    if (!l_.shares_gradients()) return 0;
    const Count dense = std::max({size_.token_table, size_.output, largest_piece()}) / tp_;
    const Count experts = moe_layers_ && l_.ep_shard > 1 ? largest_expert_piece() : 0;
    return std::max(reduction_buffers(dense, l_.dp_shard * l_.cp),
                    reduction_buffers(experts, expert_shards()));
  }
  // Bytes of the largest piece while it is reduced: its bf16 copy, or in fp32 the part that is
  // added to the sum of earlier micro-batches.
  Count reduction_buffers(Count largest, int64_t shards) const {
    const Count part =
        dp_.shards >= ShardLevel::optimizer && shards > 1 ? largest / data_ranks(shards) : 0;
    if (dp_.reduce.dtype != DType::f32) return 2 * (largest + part);
    return dp_.shards >= ShardLevel::gradients && !defers_reduction() && l_.step_micro_batches() > 1
               ? 4 * part
               : 0;
  }
  // Bytes of the whole parameters of the layer in use and of those that are gathered ahead.
  Count data_buffers() const {
    if (dp_.shards < ShardLevel::parameters || !l_.shares_gradients()) return 0;
    const int64_t in_turns = dp_.gather.units_at_once();
    // Layers that are computed again have been gathered ahead from their group's end, too.
    const int64_t again = recomputes_layers() ? std::min(recompute_group(), in_turns + 1) : 0;
    const auto stages = int64_t(stages_.size());
    const int64_t kept = plan_.pipeline.most_gathered;
    const int64_t at_once =
        kept == 0 ? layers() : ceil_div(layers() * std::min(kept, stages), stages);
    const auto there = [&](bool reshard, int64_t units) {
      return reshard ? std::max(units, again) : at_once;
    };
    const int64_t experts_in_turns = moe_layers_ ? dp_.gather.experts_at_once() : 0;
    return e_ * whole_units(there(dp_.gather.reshard_after_forward, in_turns),
                            there(dp_.gather.reshard_experts, experts_in_turns));
  }
  // Bytes of the 8-bit copies of the linears' weights. Scales of 128 x 128 elements take next to
  // nothing. Experts have one copy for forward and backward.
  Count float8_weights() const {
    const auto sharded = [&](const LayerParameters& p) {
      return p.on_rank(tp_, Count(m_.kv_heads())) - p.replicated;
    };
    const bool rows = plan_.fp8.scales == Fp8Options::Scales::blocks_of_32;
    return plan_.fp8_weights.bytes() * float8_share() * (rows ? 1 + float8_scales() : 1) *
               (Count(dense_layers_) * sharded(size_.dense) +
                Count(moe_layers_) * sharded(size_.moe)) +
           (plan_.fp8_weights.bytes() > 0 ? Count(float8_moe_layers_) * experts_here() : 0);
  }
  bool uses(recipe::CpCommType type) const {
    const auto& types = r_.distributed.cp_comm_type;
    return l_.cp > 1 && std::find(types.begin(), types.end(), type) != types.end();
  }
  // Bytes that context parallelism has in transit; all layers share them. Gradients of keys and
  // values travel in fp32.
  Count context_buffers() const {
    Count bytes = 0;
    if (uses(recipe::CpCommType::p2p) || uses(recipe::CpCommType::a2a_p2p))
      bytes += T_ * kv_width() * (2 * e_ + 3 * 4);
    if (uses(recipe::CpCommType::a2a) || uses(recipe::CpCommType::a2a_p2p))
      bytes += 4 * T_ * qkv_width() * e_;
    if (uses(recipe::CpCommType::all_gather)) {
      const auto chunks = Count(plan_.head_chunks.all_gather);
      bytes += T_ * kv_width() * (1 + 3 / chunks * Count(l_.cp)) * (e_ + 4);
    }
    return bytes;
  }
  // Elements per token of a second copy of attention's output, which a layer keeps if its core
  // attends in another layout than the projections have.
  Count context_kept() const {
    const auto& types = r_.distributed.cp_comm_type;
    if (l_.cp == 1 || recomputes(recipe::RecomputeModule::core_attn)) return 0;
    const auto exchanged = std::count_if(types.begin(), types.end(), [](recipe::CpCommType t) {
      return t == recipe::CpCommType::a2a || t == recipe::CpCommType::a2a_p2p;
    });
    return Count(exchanged) / Count(types.size()) * attention_width();
  }
  // Bytes of one activation and one gradient, sent and received.
  Count pipeline_buffers() const {
    return l_.pp > 1 ? 4 * T_ * residual() * Count(dtype_size(plan_.pipeline.dtype)) : 0;
  }
  Count expert_buffers() const {
    const Count rows = (expert_rows_per_token(plan_) + rows_) * row_share();
    return spreads_rows() && moe_layers_ ? T_ * rows * hidden() * e_ : 0;
  }

  // The larger of a GEMM's workspace and attention's, since only one of them runs at a time.
  Count workspace() const {
    if (r_.train.device != recipe::DeviceChoice::cuda) return 0;
    if (layers() == 0) return Count(kMatmulWorkspace);
    // After an exchange of heads attention has whole sequences, and some heads at a time. cuDNN
    // computes neither fp32 nor blocks of keys whose gradients are added up.
    const bool exchanged = uses(recipe::CpCommType::a2a);
    const bool cudnn = !r_.debug.own_attention && e_ == 2 && (l_.cp == 1 || exchanged);
    const int64_t ranks = exchanged ? l_.cp : 1;
    const int64_t kv_heads = heads_here(m_.kv_heads(), ranks);
    const int64_t chunks = exchanged ? plan_.head_chunks.a2a : 1;
    return Count(
        std::max(kMatmulWorkspace,
                 attention_workspace({.rows = int64_t(T_) * ranks,
                                      .A = heads_here(m_.num_attention_heads, ranks) / chunks,
                                      .G = kv_heads / chunks,
                                      .D = m_.head_dim(),
                                      .cudnn = cudnn,
                                      .fixed_order = r_.debug.deterministic,
                                      .documents = r_.packed_sequence.packed_sequence_size > 0})));
  }
  // Returns how many of a tp rank's heads each of `ranks` ranks has.
  int64_t heads_here(int64_t heads, int64_t ranks) const {
    return std::max<int64_t>(1, heads / l_.tp / ranks);
  }

  const Recipe& r_;
  const recipe::ModelConfig& m_;
  const RunPlan& plan_;
  const Layout& l_;
  const DataParallelOptions& dp_;
  const ModelParameters size_;
  const int64_t padded_vocab_;
  const ScheduleShape& shape_;
  const int64_t pp_rank_;
  const std::vector<int64_t> stages_;
  const Count e_, tp_, T_;
  const Count rows_;  // of this rank's experts, per token of this rank
  int64_t dense_layers_ = 0, moe_layers_ = 0, float8_layers_ = 0, float8_moe_layers_ = 0;
};

}  // namespace

MemoryEstimate estimate_memory(const Recipe& r, const RunPlan& plan, int64_t vocab,
                               int64_t pp_rank) {
  const auto with_load = [&](double load) {
    return Estimator(r, plan, vocab, pp_rank, load).estimate();
  };
  MemoryEstimate m = with_load(1);
  if (plan.layout.ep > 1 && !plan.experts.pad_to_capacity)
    m.per_tenth_of_rows = with_load(1.1).total() - m.total();
  return m;
}

}  // namespace mtrain::plan
