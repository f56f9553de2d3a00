#include "plan/memory.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/math.h"
#include "base/matmul_workspace.h"
#include "plan/attention_workspace.h"
#include "plan/change_layout.h"
#include "plan/expert_traffic.h"
#include "plan/layer_activations.h"
#include "plan/run_plan.h"
#include "spec/linears.h"

namespace mtrain::plan {

namespace {

RankLayers layers_of_rank(const RunPlan& plan, const std::vector<int64_t>& stages) {
  const Layout& l = plan.layout;
  RankLayers rank;
  int64_t first = 0;
  for (int64_t s = 0; s < l.stages; ++s) {
    const int64_t layers = l.layers_of_stage.empty() ? 0 : l.layers_of_stage[size_t(s)];
    if (std::find(stages.begin(), stages.end(), s) != stages.end())
      for (int64_t i = first; i < first + layers; ++i) {
        const bool moe = plan.model.layer(i).experts();
        ++(moe ? rank.moe : rank.dense);
        rank.float8 += plan.fp8.has(i);
        rank.float8_moe += plan.fp8.has(i) && moe;
      }
    first += layers;
  }
  return rank;
}

AdapterParameters adapters_of_rank(const RunPlan& plan, const std::vector<int64_t>& stages) {
  const Layout& l = plan.layout;
  AdapterParameters all;
  int64_t first = 0;
  for (int64_t s = 0; plan.model.lora && s < int64_t(l.layers_of_stage.size()); ++s) {
    const int64_t end = first + l.layers_of_stage[size_t(s)];
    for (; first < end; ++first) {
      if (!std::ranges::count(stages, s)) continue;
      const auto [dense, experts] = adapter_parameters(plan.model, first, l.tp, l.expert_tp, l.ep);
      all.dense += dense, all.experts += experts;
    }
  }
  return all;
}

// Elements of the weights of linears in a layer of which each rank of tp has all.
Count whole_linears(const RunPlan& plan, int64_t layer) {
  Count n = 0;
  for (const spec::TensorSpec& t : spec::layer_tensors(plan.model, layer))
    if (spec::is_whole_linear(t)) n += Count(t.full_shape.count());
  return n;
}

// In this class T_ counts the tokens of a micro-batch on this rank, and e_ the bytes of an element
// of the compute type. head_e_ counts those of an element of the output layer: of its weight, its
// inputs and the logits.
class Estimator {
 public:
  // The rank's experts have `load` times as many rows as the mean over the ranks of ep.
  Estimator(const RunPlan& plan, int64_t pp_rank, double load, PairOrders& orders)
      : plan_(plan),
        orders_(orders),
        attention_(plan.model.layer(0).grouped()),
        l_(plan.layout),
        dp_(plan.data_parallel),
        padded_vocab_(padded_vocab(plan.model.vocab, l_.tp)),
        size_(plan.parameters.with_vocabulary(plan.model.vocab, padded_vocab_)),
        shape_(plan.schedule_shape),
        pp_rank_(pp_rank),
        stages_(stages_of_rank(shape_, pp_rank)),
        e_(Count(dtype_size(plan.compute_dtype))),
        head_e_(plan.head_in_fp32 ? 4 : e_),
        tp_(Count(l_.tp)),
        T_(Count(l_.micro_batch) * Count(plan.sample_length) / Count(l_.cp)),
        rows_(expert_rows_per_token(plan) * load),
        layers_(layers_of_rank(plan, stages_)),
        layer_(plan, layers_, rows_),
        adapters_(adapters_of_rank(plan, stages_)) {
    if (!plan.fp8.on) return;
    const int64_t last = plan.model.layer_count() - 1;
    whole_of_layer_ = whole_linears(plan, 0);
    if (plan.model.mtp.depths > 0)
      whole_of_predictions_ =
          Count(plan.model.mtp.layers()) * (whole_linears(plan, last) - whole_of_layer_);
  }

  MemoryEstimate estimate() const {
    MemoryEstimate out;
    const Count of_experts = Count(layers_.moe) * experts_here();
    const bool frozen = plan_.model.lora.has_value();
    const auto& [small, of_expert_adapters] = adapters_;
    const Spread dense{dense_parameters() + small,
                       frozen ? small : dense_parameters(),
                       frozen ? small * moment_bytes()
                              : moments(layer_parameters()) + table_parameters() * moment_bytes(),
                       data_ranks(l_.dp_shard * l_.cp),
                       parameters_in_8_bits(),
                       weights_in_8_bits()},
        experts{of_experts + of_expert_adapters,
                frozen ? of_expert_adapters : of_experts,
                frozen ? of_expert_adapters * moment_bytes() : moments(of_experts),
                data_ranks(expert_shards()),
                layers_.float8_moe_share() * of_experts,
                layers_.float8_moe_share() * of_experts};
    out.parameters = dense.parameters + experts.parameters;
    // A head in fp32 has wider values, which need no master weights.
    const Count wider = head_parameters() * (head_e_ - e_),
                no_masters = head_e_ > e_ && plan_.optimizer.master_weights && !frozen
                                 ? 4 * head_parameters()
                                 : 0;
    out.params += wider / (dp_.shards == ShardLevel::parameters ? dense.ranks : 1);
    out.optimizer -= no_masters / (dp_.shards >= ShardLevel::optimizer ? dense.ranks : 1);
    for (const Spread& s : {dense, experts}) {
      const Count master = e_ == 4 || !plan_.optimizer.master_weights ? 0 : 4;
      const bool own_only = s.ranks > 1 && dp_.shards >= ShardLevel::gradients;
      out.params += values(s);
      out.grads += s.trained * 4 / (own_only ? s.ranks : 1);
      if (own_only && defers_reduction()) out.grads += s.trained * 4;
      out.optimizer +=
          (s.trained * master + s.moments) / (dp_.shards >= ShardLevel::optimizer ? s.ranks : 1);
    }
    out.grads += passing_gradients();
    // The head's logits are freed before the layers run backward.
    const Count backward = T_ * (recomputed_at_once() + passing_per_token());
    // The micro-batch whose backward runs no longer keeps what the output layer left.
    out.activations = T_ * (kept_per_token() + received_per_token() - left_by_head()) + backward;
    out.logits = has_head() ? std::max<Count>(0, head() - backward) + deferred() : 0;
    const Count lasting = data_buffers() + float8_weights();
    out.buffers = lasting + reduction_buffers() + context_buffers();
    out.workspace = workspace();
    // What follows the last layer's backward, and the update, use the memory of activations and
    // logits. With CUDA graphs they keep it.
    const Count free = plan_.graphs.on ? 0 : out.activations + out.logits;
    const Count at_end = std::max({table_reduction(), replicated_gradients(), update_buffers()});
    out.buffers = std::max(out.buffers, lasting + at_end - free);
    return out;
  }

 private:
  struct Spread {
    Count parameters;  // elements of this rank before they are sharded
    Count trained;     // those of them that are not frozen
    Count moments;     // bytes of their optimizer state, without master weights
    Count ranks;       // the ranks over which they are sharded
    Count in_8_bits;   // elements of layers in 8 bits
    Count quantized;   // those of them that GEMMs read in 8 bits
  };

  // Bytes of the values that a rank keeps from step to step. Weights that are gathered in 8 bits
  // exist in full in 8 bits alone, beside the rank's own part of their layers, in both types.
  // Otherwise the rank's own part of full values takes no further memory.
  Count values(const Spread& s) const {
    const bool sharded = dp_.shards == ShardLevel::parameters;
    if (!dp_.gather_as || s.ranks == 1) return s.parameters * e_ / (sharded ? s.ranks : 1);
    if (sharded) return (s.parameters * e_ + s.quantized) / s.ranks;
    return (s.in_8_bits * e_ + s.quantized) / s.ranks + (s.parameters - s.quantized) * e_ +
           s.quantized;
  }

  static Count data_ranks(int64_t ranks) { return Count(std::max<int64_t>(1, ranks)); }
  // The ranks that own different parts of the same experts.
  int64_t expert_shards() const { return l_.ep_shard / std::max<int64_t>(1, l_.dp_replicate); }
  bool first_stage() const { return stages_.front() == 0; }
  bool has_head() const { return stages_.back() == l_.stages - 1; }
  // Whether the rank has the final norm and the layers of multi-token prediction.
  bool has_predictions() const { return std::ranges::count(stages_, l_.prediction_stage()) > 0; }

  // The bytes of AdamW's two moments, for one parameter.
  Count moment_bytes() const { return plan_.optimizer.moments == DType::bf16 ? 4 : 8; }
  // The bytes of the optimizer state of parameters of layers. Muon has one momentum for matrices. A
  // layer's other parameters are too few to count. If a group gives matrices to AdamW, all
  // parameters count as AdamW's. This is an upper bound, because names are not known here.
  Count moments(Count of_layers) const {
    const auto& o = plan_.optimizer;
    const bool momentum = o.muon.on && std::ranges::none_of(o.groups, &OptimizerGroup::adamw);
    return of_layers * (momentum ? 4 : moment_bytes());
  }
  Count dense_parameters() const { return layer_parameters() + table_parameters(); }
  Count layer_parameters() const {
    const auto layer = [&](const LayerParameters& p) {
      return p.on_rank(tp_, Count(attention_.kv_heads));
    };
    return Count(layers_.dense) * layer(size_.dense) + Count(layers_.moe) * layer(size_.moe) +
           (has_predictions() ? size_.mtp : 0);
  }
  // The parameters of the output layer's unit.
  Count head_parameters() const {
    return (has_predictions() ? size_.final_norm : 0) + (has_head() ? size_.output / tp_ : 0);
  }
  // Elements of the layers in 8 bits, without experts, and of those of them that GEMMs read in 8
  // bits.
  Count parameters_in_8_bits() const {
    const Count kv = Count(attention_.kv_heads);
    return of_layers_in_8_bits(size_.dense.on_rank(tp_, kv), size_.moe.on_rank(tp_, kv)) +
           (predicts_in_8_bits() ? size_.mtp : 0);
  }
  Count weights_in_8_bits() const {
    return of_layers_in_8_bits(linear_weights(size_.dense), linear_weights(size_.moe)) +
           (predicts_in_8_bits() ? whole_of_predictions_ : 0);
  }
  Count of_layers_in_8_bits(Count dense, Count moe) const {
    return Count(layers_.float8 - layers_.float8_moe) * dense + Count(layers_.float8_moe) * moe;
  }
  bool predicts_in_8_bits() const {
    return has_predictions() && plan_.fp8.has(plan_.model.layer_count() - 1);
  }
  // Elements of the weights of a layer's linears, without the projection of multi-token prediction.
  Count linear_weights(const LayerParameters& p) const {
    return p.on_rank(tp_, Count(attention_.kv_heads)) - p.replicated + whole_of_layer_;
  }
  Count table_parameters() const {
    Count n = 0;
    // A tied table, and that of multi-token prediction, is on the first and on the last stage.
    if (first_stage()) n += size_.token_table / tp_ + size_.position_table;
    n += head_parameters();
    if (has_predictions() && plan_.model.table_at_end() && !first_stage())
      n += size_.token_table / tp_;
    return n;
  }

  // Bytes of the full matrices that Muon works on, and of those that travel between ranks.
  Count update_buffers() const {
    if (!plan_.optimizer.muon.on || layers_.all() == 0) return 0;
    const spec::DenseMlp* mlp = plan_.model.dense_mlp();
    const spec::Experts* experts = plan_.model.experts();
    // In how many parts tensor parallelism divides a matrix, if each part is updated by itself.
    const bool parts = plan_.optimizer.muon.per_shard;
    const Count rows_by = parts ? tp_ : 1, expert_by = parts ? Count(l_.expert_tp) : 1;
    const Count H = Count(plan_.model.hidden),
                // With latents, the output projection is larger than the linears of their heads.
        AD = Count(attention_.latent ? attention_.out_width()
                                     : attention_.heads * attention_.head_dim),
                F = mlp && layers_.dense ? Count(mlp->ffn) : 0,
                expert = experts && layers_.moe ? Count(experts->ffn) : 0,
                shared = experts && layers_.moe ? Count(experts->shared_ffn) : 0,
                further = has_predictions() && plan_.model.mtp.depths > 0 ? 2 * H : 0,
                wide = std::max(
                    {AD / rows_by, F / rows_by, expert / expert_by, shared / rows_by, further}),
                small = std::min(H, wide), matrix = H * wide;
    // An iteration holds X and the next X, and G and b G + c G^2. In bf16 the operands of GEMMs
    // exist a second time, but for G, which is then in bf16 alone.
    const Count gram = small * small;
    const Count iteration =
        plan_.optimizer.muon.bf16 ? 10 * matrix + 8 * gram : 8 * matrix + 8 * gram;
    const Count ranks = Count(l_.world) / Count(l_.pp);
    // Without sharding each rank has full matrices, and updates them in place.
    if (ranks == 1 || (dp_.shards == ShardLevel::nothing && l_.tp == 1)) return iteration;
    const Count all = layer_parameters() * tp_ + Count(layers_.moe) * experts_here() * ranks;
    const Count own = std::max(all / ranks, matrix), most = std::max<Count>(1 << 24, matrix),
                round = 4 * std::min(own, most);
    // If there is one round, it holds its matrices. Before and after the work it also holds a
    // message that leaves and one that arrives.
    if (own <= most) return std::max(iteration + round, 3 * round);
    // Otherwise both messages of the next round exist as well, and the results of the previous
    // round.
    return std::max(iteration + 4 * round, 5 * round);
  }

  // Whether full gradients of all layers add up until the last micro-batch.
  bool defers_reduction() const {
    return dp_.shards >= ShardLevel::gradients && dp_.defer_reduce && l_.step_micro_batches() > 1;
  }

  // Bytes per token that exist while a layer runs backward; without layers, while the embedding
  // does: its full gradient, and under sequence parallelism the rank's rows.
  Count passing_per_token() const {
    if (layers_.all() > 0)
      return std::max(layers_.dense ? layer_.passing_per_token(false) : 0,
                      layers_.moe ? layer_.passing_per_token(true) : 0);
    return first_stage() ? (layer_.hidden() + layer_.sharded_residual()) * e_ : 0;
  }

  bool recomputes_layers() const { return plan_.recompute.group > 0 && layers_.all() > 0; }

  // Bytes per token that all layers of the rank keep, for all micro-batches in flight.
  Count kept_per_token() const {
    Count all = Count(layers_.dense) * layer_.kept_per_token(false) +
                Count(layers_.moe) * (layers_.moe ? layer_.kept_per_token(true) : 0) +
                inner_per_token() + predictions_per_token();
    if (recomputes_layers()) {
      const int64_t chunks = int64_t(stages_.size());
      const int64_t recomputed = std::min(layers_.all(), plan_.recompute.layers * chunks);
      all = all * Count(layers_.all() - recomputed) / Count(layers_.all()) +
            Count(ceil_div(recomputed, plan_.recompute.group)) * layer_.residual() * e_;
      // The gradient of each depth's loss is kept, and each further use of a layer has an input.
      const spec::TokenPrediction& mtp = plan_.model.mtp;
      if (has_predictions()) all += Count(2 * mtp.depths - mtp.layers()) * layer_.residual() * e_;
      if (plan_.recompute.keeps_router)
        all += Count(recomputed) / Count(layers_.all()) * Count(layers_.moe) *
               layer_.router_per_token();
    }
    all += left_by_head();
    if (all == 0) return all;
    const Count wgrad_inputs =
        Count(layers_.dense) * layer_.wgrad_inputs_per_token(false) +
        Count(layers_.moe) * (layers_.moe ? layer_.wgrad_inputs_per_token(true) : 0);
    const auto chunks = Count(stages_.size());
    // The weight gradients that wait for the send of a paired backward's gradient may take more
    // memory than the pair.
    const Count chunk = all / chunks, layer = all / std::max<Count>(1, Count(layers_.all()));
    const int64_t delayed = plan_.pipeline.delayed_layers;
    const Count last = delayed > 1 ? layer + unsent_per_token(delayed - 1) : 0;
    return chunk * chunks_held(shape_, pp_rank_,
                               {.sizes = chunk_sizes(),
                                .wgrad_inputs = wgrad_inputs / all,
                                .pair = std::max(pair_per_token(layer), last) / chunk,
                                .unsent = unsent_per_token(delayed) / chunk});
  }

  // Bytes per token that a loss leaves for backward: the final norm's input, and its output's
  // gradient.
  Count left_by_head() const {
    return has_head() && has_predictions() ? 2 * layer_.residual() * e_ : 0;
  }

  // What the chunks of each stage of this rank keep, relative to their mean.
  std::vector<double> chunk_sizes() const {
    if (stages_.size() == 1) return {};
    std::vector<double> sizes(size_t(l_.stages), 1);
    Count all = 0;
    for (const int64_t stage : stages_) {
      Count size = stage == l_.prediction_stage() ? predictions_per_token() : 0;
      for (const bool moe : experts_of_stage(plan_, stage)) size += layer_.kept_per_token(moe);
      if (stage == l_.stages - 1) size += left_by_head();
      sizes[size_t(stage)] = size;
      all += size;
    }
    if (all == 0) return {};
    for (const int64_t stage : stages_) sizes[size_t(stage)] *= Count(stages_.size()) / all;
    return sizes;
  }

  // Bytes per token that the depths of multi-token prediction keep beside their layers: the inputs
  // of the three norms and of the projection, which are two of them wide, and the loss's gradient.
  // A layer that computes several depths keeps its own activations for each.
  Count predictions_per_token() const {
    const spec::TokenPrediction& mtp = plan_.model.mtp;
    if (mtp.depths == 0 || !has_predictions()) return 0;
    return Count(mtp.depths) * 6 * layer_.residual() * e_ +
           Count(mtp.depths - mtp.layers()) *
               layer_.kept_per_token(plan_.model.layers.back().experts());
  }

  // Bytes per token of the rows of all depths and of their gradients, on a rank whose output layer
  // is apart from multi-token prediction.
  Count received_per_token() const {
    if (!l_.predicts_apart || !has_head()) return 0;
    return 2 * Count(plan_.model.mtp.depths + 1) * layer_.residual() * e_;
  }

  // Bytes per token of the inner products of the adapters, in all layers of the rank.
  Count inner_per_token() const {
    if (!plan_.model.lora) return 0;
    Count adapters = 0;  // those of experts are computed again
    for (const auto& layer : plan_.model.lora->layers)
      adapters += Count(std::ranges::count_if(layer, [](spec::Projection p) {
        return p != spec::Projection::expert_gate_up && p != spec::Projection::expert_down;
      }));
    return adapters * Count(layers_.all()) / Count(plan_.model.layer_count()) *
           Count(plan_.model.lora->dim) * e_;
  }

  // Bytes per token that a pair of passes keeps beyond those of one pass; `layer` is the mean of a
  // layer.
  Count pair_per_token(Count layer) const {
    if (!plan_.pipeline.pair_costs)  // each pass has one layer in progress
      return layer * std::min<Count>(2, Count(layers_.all()) / Count(stages_.size()));
    std::set<std::vector<bool>> kinds;
    for (const int64_t stage : stages_) kinds.insert(experts_of_stage(plan_, stage));
    kinds.erase(std::vector<bool>());
    const auto memory = [&](const std::vector<bool>& experts) {
      std::vector<schedule::LayerMemory> layers;
      for (const bool moe : experts)
        layers.push_back({layer_.kept_per_token(moe), layer_.wgrad_inputs_per_token(moe)});
      return layers;
    };
    Count most = 0;
    for (const auto& f : kinds)
      for (const auto& b : kinds) {
        const auto& [forward, backward, order] = orders_.of(plan_, f, b);
        most = std::max(most, pair_memory(order, forward, backward, memory(f), memory(b)));
      }
    return most;
  }

  // Bytes per token that the weight gradients of a stage's first `delayed` layers need while they
  // wait for the send of the stage's gradient. The first stage sends none.
  Count unsent_per_token(int64_t delayed) const {
    Count most = 0;
    for (const int64_t stage : stages_) {
      if (stage == 0 || l_.layers_of_stage.empty()) continue;
      const std::vector<bool> experts = experts_of_stage(plan_, stage);
      Count bytes = 0;
      for (size_t i = 0; i < experts.size() && int64_t(i) < delayed; ++i)
        bytes += plan_.pipeline.delay_mlp_wgrads ? layer_.wgrad_inputs_per_token(experts[i])
                                                 : layer_.rest_wgrad_inputs_per_token(experts[i]);
      most = std::max(most, bytes);
    }
    return most;
  }

  // Bytes per token that the layers of one recomputed group keep.
  Count recomputed_at_once() const {
    if (!recomputes_layers()) return 0;
    return Count(std::min(plan_.recompute.group, layers_.all())) *
           std::max(layer_.kept_per_token(false), layers_.moe ? layer_.kept_per_token(true) : 0);
  }

  // Bytes that exist while the output layer computes a loss: the final norm's input, the layer's
  // inputs and their gradient, which under sequence parallelism are those of all tp ranks' tokens,
  // each token's loss, and first the logits, then the gradient for the layer before.
  Count head() const {
    const Count norm_input = has_predictions() ? layer_.residual() * e_ : 0,
                result = layer_.sharded_residual() * e_ + (head_e_ > e_ ? layer_.hidden() * e_ : 0);
    return T_ * (norm_input + 2 * layer_.hidden() * head_e_ + 4) + std::max(logits(), T_ * result);
  }

  // Bytes of the logits that exist at once. Rounded logits exist beside those of the output layer.
  Count logits() const {
    const Count rounded = plan_.logits_dtype ? Count(dtype_size(*plan_.logits_dtype)) : 0;
    return Count(plan_.logits_rows) * (Count(padded_vocab_) / tp_) * (head_e_ + rounded);
  }

  // Bytes of the logits' gradients and of the output layer's inputs. Deferred weight gradients keep
  // both to the end of the step.
  Count deferred() const {
    return Count(plan_.pipeline.deferred_outputs) * T_ *
           (Count(padded_vocab_) / tp_ + layer_.hidden()) * head_e_;
  }

  // Elements of a layer's experts on a rank.
  Count experts_here() const {
    return size_.moe.experts / Count(l_.ep) * size_.moe.expert / Count(l_.expert_tp);
  }
  // Elements of full units that exist beside the sharded ones: `layers_at_once` layers, the experts
  // of `experts_at_once` layers, and the embedding and the head, which have their own memory.
  // Experts that only one rank has are not sharded.
  Count full_units(int64_t layers_at_once, int64_t experts_at_once) const {
    const Count layer = layers_.moe ? size_.moe.on_rank(tp_, Count(attention_.kv_heads))
                                    : size_.dense.on_rank(tp_, Count(attention_.kv_heads));
    const Count experts =
        expert_shards() > 1 ? Count(std::min(layers_.moe, experts_at_once)) * experts_here() : 0;
    if (l_.gradient_ranks() == 1) return experts;
    Count around = 0;
    if (first_stage()) around += size_.token_table / tp_ + size_.position_table;
    around += head_parameters();
    if (has_predictions() && plan_.model.mtp.depths > 0)
      around += size_.mtp + (first_stage() ? 0 : size_.token_table / tp_);
    return Count(std::min(layers_.all(), layers_at_once)) * layer + experts + around;
  }
  // Bytes of full gradients on their way to their owners.
  Count passing_gradients() const {
    if (dp_.shards < ShardLevel::gradients || !l_.shares_gradients() || defers_reduction())
      return 0;
    const int64_t at_once = dp_.overlap_grad_reduce ? 2 : 1;
    if (plan_.model.lora)
      return layers_.all() == 0 ? 0
                                : 4 * adapters_.all() * Count(std::min(at_once, layers_.all())) /
                                      Count(layers_.all());
    return 4 * full_units(at_once, at_once);
  }
  // The elements of a dense layer's matrices, from the last to the first.
  std::vector<Count> matrices_from_the_end() const {
    const Count H = layer_.hidden(), F = layers_.dense ? Count(plan_.model.dense_mlp()->ffn) : 0;
    std::vector<Count> all{F * H, layer_.inputs(false) * F * H, Count(attention_.out_width()) * H};
    if (!attention_.latent) {
      all.push_back(Count(attention_.qkv_width()) * H);
      return all;
    }
    const spec::LatentProjections& l = *attention_.latent;
    const Count A = Count(attention_.heads), D = Count(attention_.head_dim), C = Count(l.kv_rank);
    all.push_back(A * (D - Count(l.rope_dim) + Count(attention_.value_dim())) * C);
    all.push_back((C + Count(l.rope_dim)) * H);
    all.push_back(A * D * (l.q_rank > 0 ? Count(l.q_rank) : H));
    if (l.q_rank > 0) all.push_back(Count(l.q_rank) * H);
    return all;
  }
  // The largest number of a layer's parameters that are reduced at once. Neighbouring parameters
  // are joined, from the layer's end, until a bucket is full.
  Count largest_piece() const {
    if (layers_.moe) return size_.moe.split / 2;
    const auto bucket = Count(dp_.bucket_size) * tp_;
    Count largest = 0, piece = 0;
    for (const Count matrix : matrices_from_the_end()) {
      piece = piece >= bucket ? matrix : piece + matrix;
      largest = std::max(largest, piece);
    }
    return largest;
  }
  // The same number for a layer's experts.
  Count largest_expert_piece() const {
    const Count down = experts_here() / (layer_.inputs(true) + 1),
                gate_up = down * layer_.inputs(true);
    return down >= Count(dp_.bucket_size) ? gate_up : gate_up + down;
  }
  Count reduction_buffers() const {
    if (!l_.shares_gradients()) return 0;
    if (plan_.model.lora) return 0;  // too few to count
    const Count dense =
        std::max(has_head() ? size_.output : 0, layers_.all() ? largest_piece() : 0) / tp_;
    const Count experts = layers_.moe && l_.ep_shard > 1 ? largest_expert_piece() : 0;
    return std::max(reduction_buffers(dense, l_.dp_shard * l_.cp),
                    reduction_buffers(experts, expert_shards()));
  }
  // Bytes of the token table's gradients while they are reduced, after those of all layers.
  Count table_reduction() const {
    if (!l_.shares_gradients() || plan_.model.lora) return 0;
    const bool table = first_stage() || (has_predictions() && plan_.model.table_at_end());
    return table ? reduction_buffers(size_.token_table / tp_, l_.dp_shard * l_.cp) : 0;
  }
  // Bytes of the gradients that ranks of tp sum at the end of a step: under sequence parallelism
  // each has seen a part of the tokens.
  Count replicated_gradients() const {
    if (l_.tp == 1 || !plan_.tensor.sequence_parallel || plan_.model.lora) return 0;
    const Count all = Count(layers_.dense) * size_.dense.replicated +
                      Count(layers_.moe) * size_.moe.replicated +
                      (has_predictions() ? size_.mtp + size_.final_norm : 0);
    return 4 * all / (dp_.shards >= ShardLevel::optimizer ? data_ranks(l_.dp_shard * l_.cp) : 1);
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
  // Bytes of the full parameters of the layer in use and of those that are gathered ahead.
  Count data_buffers() const {
    if (dp_.shards < ShardLevel::parameters || !l_.shares_gradients()) return 0;
    const int64_t in_turns = dp_.gather.units_at_once();
    // The layers of a recomputed group are also gathered ahead from the group's end.
    const int64_t recomputed =
        recomputes_layers() ? std::min(plan_.recompute.group, in_turns + 1) : 0;
    const auto stages = int64_t(stages_.size());
    const int64_t kept = plan_.pipeline.max_gathered;
    const int64_t at_once =
        kept == 0 ? layers_.all() : ceil_div(layers_.all() * std::min(kept, stages), stages);
    const auto units_held = [&](bool reshard, int64_t units) {
      return reshard ? std::max(units, recomputed) : at_once;
    };
    const int64_t experts_in_turns = layers_.moe ? dp_.gather.experts_at_once() : 0;
    const int64_t layers = units_held(dp_.gather.reshard_after_forward, in_turns),
                  experts = units_held(dp_.gather.reshard_experts, experts_in_turns);
    return e_ * full_units(layers, experts) + quantized_units(layers, experts) +
           (head_e_ - e_) * head_parameters();
  }
  // How many bytes more than in the compute dtype the full units take if weights are gathered in 8
  // bits. Weights take fewer, but layers in bf16 then share no memory with the others.
  Count quantized_units(int64_t layers_at_once, int64_t experts_at_once) const {
    if (!dp_.gather_as) return 0;
    const LayerParameters& p = layers_.moe ? size_.moe : size_.dense;
    const auto held = [](int64_t units, int64_t at_once) {
      return Count(std::min(units, at_once));
    };
    const auto change = [&](int64_t all, int64_t in_8_bits, int64_t at_once, Count unit,
                            Count weights) {
      const Count more =
          held(in_8_bits, at_once) + held(all - in_8_bits, at_once) - held(all, at_once);
      return more * unit * e_ - held(in_8_bits, at_once) * weights * (e_ - 1);
    };
    Count bytes = 0;
    if (l_.gradient_ranks() > 1)
      bytes += change(layers_.all(), layers_.float8, layers_at_once,
                      p.on_rank(tp_, Count(attention_.kv_heads)), linear_weights(p));
    if (expert_shards() > 1)
      bytes +=
          change(layers_.moe, layers_.float8_moe, experts_at_once, experts_here(), experts_here());
    return bytes;
  }
  // Bytes of the quantized copies of the linears' weights. Experts have one copy for forward and
  // backward.
  Count float8_weights() const {
    const Fp8WeightCache& kept = plan_.fp8_weights;
    const bool gathered = dp_.gather_as.has_value();
    const int copies = gathered && l_.gradient_ranks() > 1 ? kept.backward : kept.copies();
    const bool experts = kept.copies() > 0 && !(gathered && expert_shards() > 1);
    return plan_.fp8.formats.weight.bytes_with_scales() *
           (copies * weights_in_8_bits() +
            (experts ? Count(layers_.float8_moe) * experts_here() : 0));
  }
  // Bytes that context parallelism has in transit; all layers share them. Gradients of keys and
  // values travel in fp32.
  Count context_buffers() const {
    Count bytes = 0;
    if (layer_.uses(ContextMethod::p2p) || layer_.uses(ContextMethod::a2a_p2p))
      bytes += T_ * layer_.kv_width() * (2 * e_ + 3 * 4);
    if (layer_.uses(ContextMethod::a2a) || layer_.uses(ContextMethod::a2a_p2p))
      bytes += 4 * T_ * layer_.qkv_width() * e_;
    if (layer_.uses(ContextMethod::all_gather)) {
      const auto chunks = Count(plan_.head_chunks.all_gather);
      bytes += T_ * layer_.kv_width() * (1 + 3 / chunks * Count(l_.cp)) * (e_ + 4);
    }
    return bytes;
  }
  // The larger of a GEMM's workspace and attention's, since only one of them runs at a time.
  Count workspace() const {
    if (plan_.device.kind != DeviceKind::cuda) return 0;
    int64_t most = kMatmulWorkspace;
    if (layers_.all() == 0) return Count(most);
    const auto needs = [&](const AttentionWork& w) {
      most = std::max(most, attention_workspace(w));
    };
    // After an all-to-all of heads, attention has full sequences and computes some heads at a time.
    if (layer_.uses(ContextMethod::a2a))
      needs(attention_work(l_.cp, plan_.head_chunks.a2a));
    else if (l_.cp == 1)
      needs(attention_work(1, 1));
    if (layer_.uses(ContextMethod::p2p) || layer_.uses(ContextMethod::a2a_p2p))
      needs(block_work(attention_work(1, 1), 1));
    if (layer_.uses(ContextMethod::all_gather))
      needs(block_work(attention_work(1, plan_.head_chunks.all_gather), l_.cp));
    return Count(most);
  }
  // Attention to the full sequences of `ranks` ranks, with a part of the heads of each, and to a
  // chunk of these heads at a time.
  AttentionWork attention_work(int64_t ranks, int64_t chunks) const {
    const int64_t rows = int64_t(T_) * ranks;
    const bool packed = plan_.dataset.by_document();
    // cuDNN supports neither fp32 nor capped scores of packed documents.
    const bool cudnn =
        !plan_.device.own_attention && e_ == 2 && !(packed && attention_.score_cap > 0);
    // cuDNN computes with these two sizes of heads.
    const bool both = cudnn && attention_.head_dim == 192 && attention_.value_dim() == 128,
               padded = attention_.value_dim() != attention_.head_dim && !both;
    return {.rows = rows,
            .keys = rows,
            .sequence = rows / l_.micro_batch,
            .A = heads_here(attention_.heads, ranks) / chunks,
            .G = heads_here(attention_.kv_heads, ranks) / chunks,
            .D = std::max(attention_.head_dim, attention_.value_dim()),
            .cudnn = cudnn,
            .fixed_order = plan_.device.deterministic,
            .documents = packed,
            .padded = padded ? int64_t(e_) : 0};
  }
  // Attention to the keys of `ranks` ranks: half of the rows at a time if keys are gathered.
  AttentionWork block_work(AttentionWork w, int64_t ranks) const {
    w.blocks = true, w.gathered = ranks > 1;
    w.cudnn = w.cudnn && !w.documents;  // packs are divided among ranks
    if (w.gathered && !w.documents) w.rows /= 2;
    w.keys *= ranks, w.sequence *= ranks;
    return w;
  }
  // Returns how many of a tp rank's heads each of `ranks` ranks has.
  int64_t heads_here(int64_t heads, int64_t ranks) const {
    return std::max<int64_t>(1, heads / l_.tp / ranks);
  }

  const RunPlan& plan_;
  PairOrders& orders_;
  const spec::GroupedAttention& attention_;  // the same in all layers but for windows and positions
  const Layout& l_;
  const DataParallelOptions& dp_;
  const int64_t padded_vocab_;
  const ModelParameters size_;
  const ScheduleShape& shape_;
  const int64_t pp_rank_;
  const std::vector<int64_t> stages_;
  const Count e_, head_e_, tp_, T_;
  const Count rows_;  // rows of this rank's experts, per token of this rank
  const RankLayers layers_;
  const LayerActivations layer_;
  const AdapterParameters adapters_;  // of the rank's layers
  // Elements of the weights of linears of which each rank of tp has all, if GEMMs are in 8 bits: of
  // a layer, and of the projections of multi-token prediction.
  Count whole_of_layer_ = 0, whole_of_predictions_ = 0;
};

}  // namespace

const PairOrders::Pair& PairOrders::of(const RunPlan& plan, const std::vector<bool>& f,
                                       const std::vector<bool>& b) {
  const auto [at, added] = pairs_.try_emplace({f, b});
  if (!added) return at->second;
  const schedule::PassCosts& costs = *plan.pipeline.pair_costs;
  Pair& pair = at->second;
  pair.forward = stage_parts(costs, f, false).forward;
  pair.backward = stage_parts(costs, b, false).backward;
  pair.order = pair_order(pair.forward, pair.backward, {.delay_wgrad = plan.pipeline.split_wgrad});
  return pair;
}

MemoryEstimate estimate_memory(const RunPlan& plan, int64_t pp_rank, PairOrders& orders,
                               const NcclMachine& machine) {
  const auto with_load = [&](double load) {
    return Estimator(plan, pp_rank, load, orders).estimate();
  };
  MemoryEstimate m = with_load(1);
  if (plan.layout.ep > 1 && !plan.experts.pad_to_capacity)
    // The mean of ten tenths: the output layer may need more than the first ones add.
    m.per_tenth_of_rows = (with_load(2).total() - m.total()) / 10;
  m.nccl = nccl_bytes(plan, plan.mesh.rank_of({pp_rank, 0, 0, 0, 0}), machine);
  return m;
}

MemoryEstimate estimate_own_memory(const RunPlan& plan, int64_t pp_rank, PairOrders& orders) {
  return Estimator(plan, pp_rank, 1, orders).estimate();
}

}  // namespace mtrain::plan
