#include "train/parallel_setup.h"

#include <algorithm>

#include "base/math.h"
#include "parallel/context/context_attention.h"
#include "parallel/tensor/tensor_parallel.h"

namespace mtrain {

namespace {

TensorGroups tensor_groups(World& world, Device& device, const Recipe& r, const Mesh& mesh) {
  TensorGroups g;
  g.all = world.group("tp", mesh, {Axis::tp});
  g.compute = &device.stream(StreamKind::compute);
  g.on = &device.stream(StreamKind::tp);
  g.copies[g.all.size()] = g.all;
  // Key-value heads of which consecutive ranks have copies.
  const int64_t kv = r.model.kv_heads();
  if (kv >= g.all.size()) return g;
  const int copies = int(exact_div(int64_t(g.all.size()), kv));
  const auto first = g.all.ranks().begin() + g.all.rank() / copies * copies;
  if (kv > 1) g.copies[copies] = world.group("tp_kv", {first, first + copies});
  return g;
}

// Null without 8-bit GEMMs.
std::shared_ptr<Float8Scaling> float8_scaling(const MixedPrecisionConfig& p,
                                              const Fp8WeightCache& weights) {
  if (p.fp8 == Fp8Format::none) return nullptr;
  const bool delayed = p.fp8_recipe == Fp8Recipe::delayed;
  return std::make_shared<Float8Scaling>(
      Float8Options{.gradient = p.fp8 == Fp8Format::hybrid ? DType::f8e5m2 : DType::f8e4m3,
                    .delayed = delayed,
                    .margin = int(p.fp8_margin),
                    .history = p.fp8_amax_history_len,
                    .most_recent = p.fp8_amax_compute_algo == Fp8AmaxChoice::most_recent,
                    .keep_weights = weights.forward,
                    .keep_transposed = weights.backward});
}

// A level of a2a+p2p.
Group cp_level(World& world, const Mesh& mesh, const char* name, const Recipe& r, size_t level) {
  std::vector<int> ranks;
  for (const int64_t rank : hierarchical_cp_group(
           mesh, world.rank(), r.distributed.hierarchical_context_parallel_sizes, level))
    ranks.push_back(int(rank));
  return world.group(name, ranks);
}

}  // namespace

ModelParts model_parts(World& world, Device& device, const Recipe& r, const RunPlan& plan) {
  const Layout& l = plan.layout;
  const Mesh& mesh = plan.mesh;
  ModelParts parts;
  parts.fp8 = float8_scaling(r.mixed_precision, plan.fp8_weights);
  if (l.tp > 1)
    parts.tensor = tensor_parallel(
        tensor_groups(world, device, r, mesh),
        {.sequence = r.distributed.sequence_parallel, .overlap = plan.overlap.tp_gemm_overlap});
  parts.logits_rows = plan.logits_rows;
  if (l.cp == 1) return parts;
  const auto types = r.distributed.cp_comm_type;
  const auto comm =
      std::make_shared<ContextComm>(device.stream(StreamKind::cp), plan.overlap.cp_overlap);
  const Group cp = world.group("cp", mesh, {Axis::cp});
  Group level, ring;
  if (std::ranges::count(types, CpCommType::a2a_p2p)) {
    level = cp_level(world, mesh, "cp_a2a", r, 0);
    ring = cp_level(world, mesh, "cp_p2p", r, 1);
  }
  parts.attention_core = [=, chunks = plan.head_chunks](const HeadConfig& heads, int64_t layer) {
    switch (types.size() == 1 ? types[0] : types.at(size_t(layer))) {
      case CpCommType::p2p: return p2p_attention(comm, cp, heads);
      case CpCommType::all_gather: return all_gather_attention(comm, cp, heads, chunks.all_gather);
      case CpCommType::a2a: return a2a_attention(comm, cp, heads, chunks.a2a);
      case CpCommType::a2a_p2p: return a2a_p2p_attention(comm, level, ring, heads);
    }
    throw BugError("cp_comm_type");
  };
  return parts;
}

SequenceShare sequence_share(const World& world, const Recipe& r, const RunPlan& plan) {
  return {plan.mesh.coordinate(world.rank(), Axis::cp), plan.layout.cp,
          r.distributed.sequence_parallel ? plan.layout.tp : 1};
}

DataGroups data_groups(World& world, Device& device, const RunPlan& plan) {
  const Layout& l = plan.layout;
  const Mesh& mesh = plan.mesh;
  DataGroups g;
  g.rank = int(mesh.index_in_group(world.rank(), dp_axes()));
  g.size = int(l.dp);
  g.compute = &device.stream(StreamKind::compute);
  if (l.gradient_ranks() == 1) return g;
  g.grad_stream = &device.stream(StreamKind::dp_grad);
  g.all = world.group("dp_cp", mesh, dp_cp_axes());
  g.shards = l.dp_replicate == 1 ? g.all : world.group("dp_shard_cp", mesh, dp_shard_cp_axes());
  g.replicas = world.group("dp_replicate", mesh, {Axis::dp_replicate});
  if (plan.data_parallel.shards == ShardLevel::nothing) return g;
  g.param_stream = &device.stream(StreamKind::dp_param);
  g.gather = world.group("dp_param", mesh, dp_shard_cp_axes());
  return g;
}

}  // namespace mtrain
