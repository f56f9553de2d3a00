#include "train/parallel_setup.h"

#include <algorithm>

#include "base/math.h"
#include "parallel/context/cores.h"
#include "parallel/tensor/tensor_parallel.h"
#include "plan/fp8_weight_cache.h"
#include "plan/overlap.h"

namespace mtrain {

namespace {

Shard shard_of(const Recipe& r) {
  const auto& d = r.distributed;
  switch (d.strategy) {
    case Strategy::ddp: return Shard::nothing;
    case Strategy::megatron_ddp:
      return r.ddp.use_distributed_optimizer ? Shard::optimizer : Shard::nothing;
    case Strategy::fsdp2: return Shard::parameters;
    case Strategy::megatron_fsdp: break;
  }
  switch (d.zero_dp_strategy) {
    case ZeroStrategy::none: return Shard::nothing;
    case ZeroStrategy::optimizer: return Shard::optimizer;
    case ZeroStrategy::gradients: return Shard::gradients;
    case ZeroStrategy::parameters: return Shard::parameters;
  }
  throw BugError("strategy");
}

TensorGroups tensor_groups(World& world, Device& device, const Recipe& r, const Mesh& mesh) {
  TensorGroups g;
  g.all = world.group("tp", mesh, {Axis::tp});
  g.compute = &device.stream("compute");
  g.on = &device.stream("tp");
  g.copies[g.all.size()] = g.all;
  // Key-value heads of which consecutive ranks have copies.
  const int64_t kv = r.model.kv_heads();
  if (kv >= g.all.size()) return g;
  const int copies = int(exact_div(int64_t(g.all.size()), kv));
  const auto first = g.all.ranks().begin() + g.all.rank() / copies * copies;
  if (kv > 1) g.copies[copies] = world.group("tp_kv", {first, first + copies});
  return g;
}

// Of the chosen methods; nothing where tp_comm_overlap is off.
TensorOverlap tensor_overlap(const Overlap& overlap) {
  using Method = ProductOverlap::Method;
  std::map<std::string, ProductOverlap> products;
  for (const auto& [name, gemm] : overlap.tp_products) {
    const Method method = gemm.method == TpOverlapMethod::bulk            ? Method::bulk
                          : gemm.method == TpOverlapMethod::ring_exchange ? Method::ring_exchange
                                                                          : Method::pipeline;
    products[name] = {method, gemm.num_splits, gemm.aggregate};
  }
  return TensorOverlap(std::move(products));
}

// Null without 8-bit products.
std::shared_ptr<Float8Scaling> float8_scaling(const Recipe& r, const Layout& l) {
  const MixedPrecisionConfig& p = r.mixed_precision;
  if (p.fp8 == Fp8Format::none) return nullptr;
  const Fp8WeightCache copies = resolve_fp8_weight_cache(r, l);
  const bool delayed = p.fp8_recipe == Fp8Recipe::delayed;
  return std::make_shared<Float8Scaling>(
      Float8Options{.gradient = p.fp8 == Fp8Format::hybrid ? DType::f8e5m2 : DType::f8e4m3,
                    .delayed = delayed,
                    .margin = int(p.fp8_margin),
                    .history = p.fp8_amax_history_len,
                    .most_recent = p.fp8_amax_compute_algo == Fp8AmaxChoice::most_recent,
                    .keep_weights = copies.forward,
                    .keep_transposed = copies.backward});
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

Mesh mesh_of(const Layout& l) {
  return device_mesh(
      {.pp = l.pp, .dp_replicate = l.dp_replicate, .dp_shard = l.dp_shard, .cp = l.cp, .tp = l.tp});
}

ModelParts model_parts(World& world, Device& device, const Recipe& r) {
  const Layout l = layout_of(r, world.size());
  const Mesh mesh = mesh_of(l);
  ModelParts parts;
  parts.fp8 = float8_scaling(r, l);
  if (l.tp > 1)
    parts.tensor = tensor_parallel(tensor_groups(world, device, r, mesh),
                                   {.sequence = r.distributed.sequence_parallel,
                                    .overlap = tensor_overlap(resolve_overlap(r, l))});
  if (l.cp == 1) return parts;
  const auto types = r.distributed.cp_comm_type;
  const auto lane =
      std::make_shared<ContextLane>(device.stream("cp"), resolve_overlap(r, l).cp_overlap);
  const Group cp = world.group("cp", mesh, {Axis::cp});
  Group level, ring;
  if (std::ranges::count(types, CpCommType::a2a_p2p)) {
    level = cp_level(world, mesh, "cp_a2a", r, 0);
    ring = cp_level(world, mesh, "cp_p2p", r, 1);
  }
  parts.attention_core = [=](const HeadConfig& heads, int64_t layer) {
    switch (types.size() == 1 ? types[0] : types.at(size_t(layer))) {
      case CpCommType::p2p: return p2p_attention(lane, cp, heads);
      case CpCommType::all_gather: return all_gather_attention(lane, cp, heads);
      case CpCommType::a2a: return a2a_attention(lane, cp, heads);
      case CpCommType::a2a_p2p: return a2a_p2p_attention(lane, level, ring, heads);
    }
    throw BugError("cp_comm_type");
  };
  return parts;
}

SequenceShare sequence_share(const World& world, const Recipe& r) {
  const Layout l = layout_of(r, world.size());
  return {mesh_of(l).coordinate(world.rank(), Axis::cp), l.cp,
          r.distributed.sequence_parallel ? l.tp : 1};
}

DataGroups data_groups(World& world, Device& device, const Recipe& r) {
  const Layout l = layout_of(r, world.size());
  const Mesh mesh = mesh_of(l);
  DataGroups g;
  g.rank = int(mesh.index_in_group(world.rank(), dp_axes()));
  g.size = int(l.dp);
  g.compute = &device.stream("compute");
  if (l.gradient_ranks() == 1) return g;
  g.grad_stream = &device.stream("dp_grad");
  g.all = world.group("dp_cp", mesh, dp_cp_axes());
  g.shards = l.dp_replicate == 1 ? g.all : world.group("dp_shard_cp", mesh, dp_shard_cp_axes());
  g.replicas = world.group("dp_replicate", mesh, {Axis::dp_replicate});
  if (shard_of(r) == Shard::nothing) return g;
  g.param_stream = &device.stream("dp_param");
  g.gather = world.group("dp_param", mesh, dp_shard_cp_axes());
  return g;
}

DataParallelOptions data_parallel_options(const Recipe& r, int world, size_t first_stage_units) {
  const auto& d = r.distributed;
  const Overlap overlap = resolve_overlap(r, layout_of(r, world));
  DataParallelOptions o;
  o.shard = shard_of(r);
  o.reduce = {.dtype = r.mixed_precision.grad_reduce_in_fp32 ? DType::f32 : DType::bf16,
              .average = r.ddp.average_in_collective};
  o.bucket_size = overlap.bucket_size;
  if (d.strategy == Strategy::fsdp2) {  // hides what its depths ask for
    o.defer_reduce = d.defer_fsdp_grad_sync;
    o.gather = {.reshard_after_forward = d.reshard_after_forward.value_or(d.pp_size == 1),
                .forward_prefetch = d.fsdp2_forward_prefetch_depth,
                .backward_prefetch = d.fsdp2_backward_prefetch_depth};
    return o;
  }
  o.overlap_grad_reduce = overlap.overlap_grad_reduce;
  o.gather_updated.overlap = overlap.overlap_param_gather;
  if (layout_of(r, world).stages_per_rank > 1 && d.pp_size > 1) {
    o.gather_updated.during_update =
        overlap.overlap_param_gather_with_optimizer_step ? first_stage_units : 0;
    o.gather_updated.together = overlap.align_param_gather;
  }
  o.defer_reduce = false;
  const int64_t ahead = overlap.overlap_param_gather ? 1 : 0;
  o.gather = {.forward_prefetch = ahead, .backward_prefetch = ahead};
  return o;
}

}  // namespace mtrain
