#include "plan/data_parallel_memory.h"

#include <algorithm>

#include "base/math.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

DataParallelMemory::DataParallelMemory(const RunPlan& plan, const RankParameters& rank,
                                       const LayerActivations& layer)
    : plan_(plan),
      rank_(rank),
      layer_(layer),
      attention_(plan.model.layer(0).grouped()),
      l_(plan.layout),
      dp_(plan.data_parallel),
      size_(rank.model()),
      layers_(rank.layers()),
      tp_(Count(l_.tp)),
      e_(Count(dtype_size(plan.compute_dtype))),
      head_e_(plan.head_in_fp32 ? 4 : e_) {}

bool DataParallelMemory::defers_reduction() const {
  return dp_.shards >= ShardLevel::gradients && dp_.defer_reduce && l_.step_micro_batches() > 1;
}

// Elements of full units that exist beside the sharded ones: `layers_at_once` layers, the experts
// of `experts_at_once` layers, and the embedding and the head, which have their own memory.
// Experts that only one rank has are not sharded.
Count DataParallelMemory::full_units(int64_t layers_at_once, int64_t experts_at_once) const {
  const Count layer = rank_.of_layer(layers_.moe > 0);
  const Count experts = rank_.expert_shards() > 1
                            ? Count(std::min(layers_.moe, experts_at_once)) * rank_.of_experts()
                            : 0;
  if (l_.gradient_ranks() == 1) return experts;
  Count around = 0;
  if (rank_.first_stage()) around += size_.token_table / tp_ + size_.position_table;
  around += rank_.of_head();
  if (rank_.has_predictions() && plan_.model.mtp.depths > 0)
    around += size_.mtp + (rank_.first_stage() ? 0 : size_.token_table / tp_);
  return Count(std::min(layers_.all(), layers_at_once)) * layer + experts + around;
}

Count DataParallelMemory::passing_gradients() const {
  if (dp_.shards < ShardLevel::gradients || !l_.shares_gradients() || defers_reduction()) return 0;
  const int64_t at_once = dp_.overlap_grad_reduce ? 2 : 1;
  if (plan_.model.lora)
    return layers_.all() == 0 ? 0
                              : 4 * rank_.adapters().all() *
                                    Count(std::min(at_once, layers_.all())) / Count(layers_.all());
  return 4 * full_units(at_once, at_once);
}

// The elements of a dense layer's matrices, from the last to the first.
std::vector<Count> DataParallelMemory::matrices_from_the_end() const {
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
Count DataParallelMemory::largest_piece() const {
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
Count DataParallelMemory::largest_expert_piece() const {
  const Count down = rank_.of_experts() / (layer_.inputs(true) + 1),
              gate_up = down * layer_.inputs(true);
  return down >= Count(dp_.bucket_size) ? gate_up : gate_up + down;
}

Count DataParallelMemory::reduction_buffers() const {
  if (!l_.shares_gradients()) return 0;
  if (plan_.model.lora) return 0;  // too few to count
  const Count dense =
      std::max(rank_.has_head() ? size_.output : 0, layers_.all() ? largest_piece() : 0) / tp_;
  const Count experts = layers_.moe && l_.ep_shard > 1 ? largest_expert_piece() : 0;
  return std::max(reduction_buffers(dense, l_.dp_shard * l_.cp),
                  reduction_buffers(experts, rank_.expert_shards()));
}

Count DataParallelMemory::table_reduction() const {
  if (!l_.shares_gradients() || plan_.model.lora) return 0;
  const bool table = rank_.first_stage() || (rank_.has_predictions() && plan_.model.table_at_end());
  return table ? reduction_buffers(size_.token_table / tp_, l_.dp_shard * l_.cp) : 0;
}

Count DataParallelMemory::replicated_gradients() const {
  if (l_.tp == 1 || !plan_.tensor.sequence_parallel || plan_.model.lora) return 0;
  const Count all = Count(layers_.dense) * size_.dense.replicated +
                    Count(layers_.moe) * size_.moe.replicated +
                    (rank_.has_predictions() ? size_.mtp + size_.final_norm : 0);
  return 4 * all / (dp_.shards >= ShardLevel::optimizer ? data_ranks(l_.dp_shard * l_.cp) : 1);
}

// Bytes of the largest piece while it is reduced: its bf16 copy, or in fp32 the part that is
// added to the sum of earlier micro-batches.
Count DataParallelMemory::reduction_buffers(Count largest, int64_t shards) const {
  const Count part =
      dp_.shards >= ShardLevel::optimizer && shards > 1 ? largest / data_ranks(shards) : 0;
  if (dp_.reduce.dtype != DType::f32) return 2 * (largest + part);
  return dp_.shards >= ShardLevel::gradients && !defers_reduction() && l_.step_micro_batches() > 1
             ? 4 * part
             : 0;
}

Count DataParallelMemory::gathered_parameters() const {
  if (dp_.shards < ShardLevel::parameters || !l_.shares_gradients()) return 0;
  const int64_t in_turns = dp_.gather.units_at_once();
  // The layers of a recomputed group are also gathered ahead from the group's end.
  const int64_t recomputed = plan_.recompute.group > 0 && layers_.all() > 0
                                 ? std::min(plan_.recompute.group, in_turns + 1)
                                 : 0;
  // When the output layer reads the token table, the first layers are gathered as in a forward,
  // though a backward begins with the last ones.
  const int64_t early =
      plan_.model.tied_embeddings && l_.stages == 1 ? dp_.gather.forward_prefetch : 0;
  const auto stages = int64_t(rank_.stages().size());
  const int64_t kept = plan_.pipeline.max_gathered;
  const int64_t at_once =
      kept == 0 ? layers_.all() : ceil_div(layers_.all() * std::min(kept, stages), stages);
  const auto units_held = [&](bool reshard, int64_t units) {
    return reshard ? std::max(units, recomputed) : at_once;
  };
  const int64_t experts_in_turns = layers_.moe ? dp_.gather.experts_at_once() : 0;
  const int64_t layers = units_held(dp_.gather.reshard_after_forward, in_turns + early),
                experts = units_held(dp_.gather.reshard_experts, experts_in_turns);
  return e_ * full_units(layers, experts) + float8_unit_change(layers, experts) +
         (head_e_ - e_) * rank_.of_head();
}

// How many bytes more than in the compute dtype the full units take if weights are gathered in 8
// bits. Weights take fewer, but layers in bf16 then share no memory with the others.
Count DataParallelMemory::float8_unit_change(int64_t layers_at_once,
                                             int64_t experts_at_once) const {
  if (!dp_.gather_as) return 0;
  const auto held = [](int64_t units, int64_t at_once) { return Count(std::min(units, at_once)); };
  const auto change = [&](int64_t all, int64_t float8, int64_t at_once, Count unit, Count weights) {
    const Count more = held(float8, at_once) + held(all - float8, at_once) - held(all, at_once);
    return more * unit * e_ - held(float8, at_once) * weights * (e_ - 1);
  };
  Count bytes = 0;
  if (l_.gradient_ranks() > 1)
    bytes += change(layers_.all(), layers_.float8, layers_at_once, rank_.of_layer(layers_.moe > 0),
                    rank_.linear_weights(layers_.moe > 0));
  if (rank_.expert_shards() > 1)
    bytes += change(layers_.moe, layers_.float8_moe, experts_at_once, rank_.of_experts(),
                    rank_.of_experts());
  return bytes;
}

}  // namespace mtrain::plan
