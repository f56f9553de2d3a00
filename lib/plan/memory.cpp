#include "plan/memory.h"

#include <algorithm>
#include <set>

#include "base/math.h"
#include "plan/change_layout.h"
#include "plan/data_parallel_memory.h"
#include "plan/expert_traffic.h"
#include "plan/kernel_workspace.h"
#include "plan/layer_activations.h"
#include "plan/memory_peaks.h"
#include "plan/rank_parameters.h"
#include "plan/run_plan.h"
#include "schedule/catalog.h"

namespace mtrain::plan {

namespace {

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
        shape_(plan.schedule_shape),
        pp_rank_(pp_rank),
        e_(Count(dtype_size(plan.compute_dtype))),
        head_e_(plan.head_in_fp32 ? 4 : e_),
        tp_(Count(l_.tp)),
        T_(Count(l_.micro_batch) * Count(plan.sample_length) / Count(l_.cp)),
        rank_(plan, pp_rank),
        stages_(rank_.stages()),
        layers_(rank_.layers()),
        layer_(plan, layers_, expert_rows_per_token(plan) * load),
        data_(plan, rank_, layer_) {}

  MemoryEstimate estimate() const {
    MemoryEstimate out;
    const Count of_experts = Count(layers_.moe) * rank_.of_experts();
    const bool frozen = plan_.model.lora.has_value();
    const auto& [small, of_expert_adapters] = rank_.adapters();
    const Spread dense{rank_.dense() + small,
                       frozen ? small : rank_.dense(),
                       frozen ? small * moment_bytes()
                              : moments(rank_.of_layers()) + rank_.of_tables() * moment_bytes(),
                       data_ranks(l_.dp_shard * l_.cp),
                       rank_.of_float8_layers(),
                       rank_.float8_weights()},
        experts{of_experts + of_expert_adapters,
                frozen ? of_expert_adapters : of_experts,
                frozen ? of_expert_adapters * moment_bytes() : moments(of_experts),
                data_ranks(rank_.expert_shards()),
                layers_.float8_moe_share() * of_experts,
                layers_.float8_moe_share() * of_experts};
    out.parameters = dense.parameters + experts.parameters;
    // A head in fp32 has wider values, which need no master weights.
    const Count wider = rank_.of_head() * (head_e_ - e_),
                no_masters = head_e_ > e_ && plan_.optimizer.master_weights && !frozen
                                 ? 4 * rank_.of_head()
                                 : 0;
    out.params += wider / (dp_.shards == ShardLevel::parameters ? dense.ranks : 1);
    out.optimizer -= no_masters / (dp_.shards >= ShardLevel::optimizer ? dense.ranks : 1);
    for (const Spread& s : {dense, experts}) {
      const Count master = e_ == 4 || !plan_.optimizer.master_weights ? 0 : 4;
      const bool own_only = s.ranks > 1 && dp_.shards >= ShardLevel::gradients;
      out.params += values(s);
      out.grads += s.trained * 4 / (own_only ? s.ranks : 1);
      if (own_only && data_.defers_reduction()) out.grads += s.trained * 4;
      out.optimizer +=
          (s.trained * master + s.moments) / (dp_.shards >= ShardLevel::optimizer ? s.ranks : 1);
    }
    out.grads += data_.passing_gradients();
    // The head's logits are freed before the layers run backward.
    const Count backward = T_ * (recomputed_at_once() + passing_per_token());
    // The micro-batch whose backward runs no longer keeps what the output layer left.
    out.activations = T_ * (kept_per_token() + received_per_token() - left_by_head()) + backward;
    out.logits = rank_.has_head() ? std::max<Count>(0, head() - backward) + deferred() : 0;
    const Buffers buffers = this->buffers();
    out.buffers = buffers.lasting + buffers.passing;
    out.workspace = kernel_workspace(plan_, layer_, layers_.all() > 0);
    // What follows the last layer's backward, and the update, use the memory of activations and
    // logits. With CUDA graphs they keep it.
    const Count free = plan_.graphs.on ? 0 : out.activations + out.logits;
    out.buffers = std::max(out.buffers, buffers.lasting + buffers.at_end - free);
    return out;
  }

  MemoryPeaks peaks() const {
    const MemoryEstimate all = estimate();
    const Buffers buffers = this->buffers();
    return {.params = all.params,
            .grads = all.grads,
            .optimizer = all.optimizer,
            .activations = all.activations + all.logits,
            .buffers = buffers.lasting + std::max(buffers.passing, buffers.at_end),
            .total = all.total() - all.workspace - all.nccl};
  }

 private:
  // Bytes of the buffers that exist from step to step, of the others while passes run, and of those
  // that follow the last layer's backward.
  struct Buffers {
    Count lasting, passing, at_end;
  };
  Buffers buffers() const {
    return {data_.gathered_parameters() + float8_copies() + rotary_tables() + sums_of_step(),
            inputs() + data_.reduction_buffers() + context_buffers(),
            std::max({inputs() + data_.table_reduction(), data_.replicated_gradients(),
                      update_buffers()})};
  }

  struct Spread {
    Count parameters;        // elements of this rank before they are sharded
    Count trained;           // those of them that are not frozen
    Count moments;           // bytes of their optimizer state, without master weights
    Count ranks;             // the ranks over which they are sharded
    Count of_float8_layers;  // elements of layers whose GEMMs are in 8 bits
    Count float8_weights;    // those of them that these GEMMs read
  };

  // Bytes of the values that a rank keeps from step to step. Weights that are gathered in 8 bits
  // exist in full in 8 bits alone, beside the rank's own part of their layers, in both types.
  // Otherwise the rank's own part of full values takes no further memory.
  Count values(const Spread& s) const {
    const bool sharded = dp_.shards == ShardLevel::parameters;
    if (!dp_.gather_as || s.ranks == 1) return s.parameters * e_ / (sharded ? s.ranks : 1);
    if (sharded) return (s.parameters * e_ + s.float8_weights) / s.ranks;
    return (s.of_float8_layers * e_ + s.float8_weights) / s.ranks +
           (s.parameters - s.float8_weights) * e_ + s.float8_weights;
  }

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
                further = rank_.has_predictions() && plan_.model.mtp.depths > 0 ? 2 * H : 0,
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
    const Count all = rank_.of_layers() * tp_ + Count(layers_.moe) * rank_.of_experts() * ranks;
    const Count own = std::max(all / ranks, matrix), most = std::max<Count>(1 << 24, matrix),
                round = 4 * std::min(own, most);
    // If there is one round, it holds its matrices. Before and after the work it also holds a
    // message that leaves and one that arrives.
    if (own <= most) return std::max(iteration + round, 3 * round);
    // Otherwise both messages of the next round exist as well, and the results of the previous
    // round.
    return std::max(iteration + 4 * round, 5 * round);
  }

  // Bytes per token that exist while a layer runs backward; without layers, while the embedding
  // does: its full gradient, and under sequence parallelism the rank's rows.
  Count passing_per_token() const {
    if (layers_.all() > 0)
      return std::max(layers_.dense ? layer_.passing_per_token(false) : 0,
                      layers_.moe ? layer_.passing_per_token(true) : 0);
    return rank_.first_stage() ? (layer_.hidden() + layer_.sharded_residual()) * e_ : 0;
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
      if (rank_.has_predictions())
        all += Count(2 * mtp.depths - mtp.layers()) * layer_.residual() * e_;
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
    const Count held = chunk * chunks_held(shape_, pp_rank_,
                                           {.sizes = chunk_sizes(),
                                            .wgrad_inputs = wgrad_inputs / all,
                                            .pair = std::max(pair_per_token(layer), last) / chunk,
                                            .unsent = unsent_per_token(delayed) / chunk});
    return held - apart_per_token();
  }

  // Bytes per token that are counted twice in schedules with separate weight gradients: the most
  // that is held, after a layer's input gradients, and the widest gradients, early in the layer. At
  // the layer's end there are gradients of its input, of the residual stream and of the norm alone.
  Count apart_per_token() const {
    const bool split = !shape_.table && schedule::schedule_kind(shape_.schedule).wgrads ==
                                            schedule::WgradTiming::all_later;
    if (!split || layers_.all() == 0 || recomputes_layers()) return 0;
    const bool moe = layers_.moe > 0;
    const Count grows = layer_.wgrad_inputs_per_token(moe) - layer_.kept_per_token(moe);
    return std::max<Count>(0, std::min(grows, passing_per_token() - 3 * layer_.hidden() * e_));
  }

  // Bytes per token that a loss leaves for backward: the final norm's input, and its output's
  // gradient.
  Count left_by_head() const {
    return rank_.has_head() && rank_.has_predictions() ? 2 * layer_.residual() * e_ : 0;
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
    if (mtp.depths == 0 || !rank_.has_predictions()) return 0;
    return Count(mtp.depths) * 6 * layer_.residual() * e_ +
           Count(mtp.depths - mtp.layers()) *
               layer_.kept_per_token(plan_.model.layers.back().experts());
  }

  // Bytes per token of the rows of all depths and of their gradients, on a rank whose output layer
  // is apart from multi-token prediction.
  Count received_per_token() const {
    if (!l_.predicts_apart || !rank_.has_head()) return 0;
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
    const Count norm_input = rank_.has_predictions() ? layer_.residual() * e_ : 0,
                result = layer_.sharded_residual() * e_ + (head_e_ > e_ ? layer_.hidden() * e_ : 0);
    // Rows that come from the stage before are its inputs, unless tp or the head's type copies
    // them.
    const bool copies = layer_.sharded_residual() > 0 || head_e_ > e_;
    const Count inputs = l_.predicts_apart && !copies ? 1 : 2;
    return T_ * (norm_input + inputs * layer_.hidden() * head_e_ + 4) +
           std::max(logits(), T_ * result);
  }

  // The logits of a token, of all ranks of tp.
  Count vocabulary() const { return Count(padded_vocab(plan_.model.vocab, l_.tp)); }

  // Bytes of the logits that exist at once. Rounded logits exist beside those of the output layer.
  Count logits() const {
    const Count rounded = plan_.logits_dtype ? Count(dtype_size(*plan_.logits_dtype)) : 0;
    return Count(plan_.logits_rows) * (vocabulary() / tp_) * (head_e_ + rounded);
  }

  // Bytes of the logits' gradients and of the output layer's inputs. Deferred weight gradients keep
  // both to the end of the step.
  Count deferred() const {
    return Count(plan_.pipeline.deferred_outputs) * T_ * (vocabulary() / tp_ + layer_.hidden()) *
           head_e_;
  }

  // Bytes of the quantized copies of the linears' weights. Experts have one copy for forward and
  // backward.
  Count float8_copies() const {
    const Fp8WeightCache& kept = plan_.fp8_weights;
    const bool gathered = dp_.gather_as.has_value();
    const int copies = gathered && l_.gradient_ranks() > 1 ? kept.backward : kept.copies();
    const bool experts = kept.copies() > 0 && !(gathered && rank_.expert_shards() > 1);
    return plan_.fp8.formats.weight.bytes_with_scales() *
           (copies * rank_.float8_weights() +
            (experts ? Count(layers_.float8_moe) * rank_.of_experts() : 0));
  }
  // Bytes of the tokens, labels and positions of a step's micro-batches, in 32 bits. Multi-token
  // prediction has tokens and labels of each depth, too.
  Count inputs() const {
    return 4 * T_ * Count(l_.step_micro_batches()) * Count(3 + 2 * plan_.model.mtp.depths);
  }
  // Bytes of the sums of losses, and of what each router sums over tokens. The allocator gives each
  // of them 512 bytes at least.
  Count sums_of_step() const {
    constexpr Count kLeast = 512;
    const spec::Experts* experts = plan_.model.experts();
    if (!experts) return kLeast;
    const Count sums = 4 * Count(plan_.model.layer_count()) * Count(3 * experts->count + 2);
    return 2 * kLeast + std::max(kLeast, sums);
  }
  // Bytes of the cosines and sines of all positions, in fp32. Layers of a stage that rotate alike
  // share them.
  Count rotary_tables() const {
    int64_t elements = 0, first = 0;
    for (int64_t s = 0; s < int64_t(l_.layers_of_stage.size()); ++s) {
      const int64_t end = first + l_.layers_of_stage[size_t(s)];
      if (!std::ranges::count(stages_, s)) {
        first = end;
        continue;
      }
      std::vector<const spec::Rotary*> different;
      for (; first < end; ++first) {
        const spec::Rotary& rotary = plan_.model.layer(first).grouped().rotary;
        if (std::ranges::any_of(different, [&](const auto* known) { return *known == rotary; }))
          continue;
        different.push_back(&rotary);
        elements += plan_.sample_length * rotary.dims;
      }
    }
    return 4 * Count(elements);
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

  const RunPlan& plan_;
  PairOrders& orders_;
  const spec::GroupedAttention& attention_;  // the same in all layers but for windows and positions
  const Layout& l_;
  const DataParallelOptions& dp_;
  const ScheduleShape& shape_;
  const int64_t pp_rank_;
  const Count e_, head_e_, tp_, T_;
  const RankParameters rank_;
  const std::vector<int64_t>& stages_;
  const RankLayers& layers_;
  const LayerActivations layer_;
  const DataParallelMemory data_;
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

MemoryPeaks estimate_peaks(const RunPlan& plan, int64_t pp_rank) {
  PairOrders orders;
  return Estimator(plan, pp_rank, 1, orders).peaks();
}

}  // namespace mtrain::plan
