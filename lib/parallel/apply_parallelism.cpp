#include "parallel/apply_parallelism.h"

#include <numeric>

#include "base/math.h"
#include "parallel/context/context_attention.h"
#include "parallel/data/registered_memory.h"
#include "parallel/expert/expert_comm.h"
#include "parallel/tensor/tensor_parallel.h"
#include "plan/process_groups.h"

namespace mtrain::parallel {

namespace {

// Returns the key-value heads of a layer. All layers have the same number.
int64_t kv_heads(const spec::ModelSpec& model) { return model.layer(0).grouped().kv_heads; }

// `all` are the ranks of tp, `kv` the key-value heads of the model.
TensorGroups tensor_groups(comm::World& world, Device& device, Group all, int64_t kv) {
  TensorGroups g;
  g.all = std::move(all);
  g.compute = &device.stream(device::StreamKind::compute);
  g.stream = &device.stream(device::StreamKind::tp);
  g.replicas[g.all.size()] = g.all;
  // If there are fewer key-value heads than ranks, consecutive ranks have replicas of one head.
  if (kv >= g.all.size()) return g;
  const int replicas = int(exact_div(int64_t(g.all.size()), kv));
  const auto first = g.all.ranks().begin() + g.all.rank() / replicas * replicas;
  if (kv > 1) g.replicas[replicas] = world.group("tp_kv", {first, first + replicas});
  return g;
}

// Returns null without 8-bit linears.
std::shared_ptr<model::Quantizer> make_quantizer(const plan::Fp8Options& o,
                                                 const plan::Fp8WeightCache& weights) {
  if (!o.on) return nullptr;
  return std::make_shared<model::Quantizer>(
      model::QuantizerOptions{.formats = o.formats,
                              .delayed = o.delayed,
                              .margin = int(o.margin),
                              .history = o.history,
                              .most_recent = o.most_recent,
                              .keep_weights = weights.forward,
                              .keep_transposed = weights.backward});
}

// Makes this rank's group of one level of a2a+p2p.
Group cp_level(comm::World& world, const RunPlan& plan, const char* name, size_t level) {
  std::vector<int> ranks;
  for (const int64_t rank :
       hierarchical_cp_group(plan.mesh, world.rank(), plan.context.levels, level))
    ranks.push_back(int(rank));
  return world.group(name, ranks);
}

// Sets up the dispatchers that bring tokens to experts, or to parts of experts, on other ranks.
void spread_experts(comm::World& world, Device& device, const RunPlan& plan,
                    model::ModelImpls& impls) {
  const plan::Layout& l = plan.layout;
  const mesh::Mesh moe = plan.moe_mesh();
  impls.divided_experts = l.tp > 1 && !l.undivided_experts();
  const bool other_tokens = impls.divided_experts && plan.tensor.sequence_parallel;
  if (l.ep == 1 && !impls.divided_experts) return;
  std::shared_ptr<ExpertComm> comm;
  if (l.ep > 1 || other_tokens) {
    ExpertParts parts;
    if (other_tokens)
      parts = {.tp = world.group("expert_tp", moe, {mesh::Axis::tp}),
               .all = world.group("ep_tp", moe, {mesh::Axis::ep, mesh::Axis::tp})};
    // If a forward and a backward run together, one exchanges counts while the rows of the other
    // are in flight. Counts therefore have a group of their own. It has the same ranks as the group
    // of the rows, and their hosts call both groups in the same order.
    std::optional<CountsGroup> counts;
    if (plan.overlap.overlap_moe_expert_parallel_comm && !plan.experts.pad_to_capacity) {
      mesh::Axes axes{mesh::Axis::ep};
      if (other_tokens) axes.push_back(mesh::Axis::tp);
      counts = {world.group("ep_counts", moe, axes, comm::Traffic::scalars),
                &device.stream(device::StreamKind::ep_counts)};
    }
    comm = std::make_shared<ExpertComm>(world.group("ep", moe, {mesh::Axis::ep}),
                                        device.stream(device::StreamKind::ep),
                                        plan.model.experts()->count, parts, counts);
    impls.experts = {.ranks = comm->ranks(), .rank = comm->rank()};
  }
  // Without ep all rows belong to experts of this rank, and no counts need to be exchanged.
  const plan::ExpertOptions options =
      l.ep > 1 ? plan.experts : plan::ExpertOptions{.dispatcher = TokenDispatch::all_gather};
  const auto own = [comm, options, chunks = plan.overlap.moe_dispatch_chunks,
                    experts = plan.model.experts()->count] {
    if (!comm) return model::local_dispatcher(experts);
    using enum TokenDispatch;
    switch (options.dispatcher) {
      case all_to_all: return all_to_all_dispatcher(comm, options.pad_to_capacity, chunks);
      case all_gather: return all_gather_dispatcher(comm, options.pad_to_capacity);
      case flex: return flex_dispatcher(comm);
    }
    throw BugError("a dispatcher");
  };
  impls.token_dispatcher = own;
  impls.shared_expert_overlap = plan.overlap.shared_expert_overlap;
  if (impls.divided_experts && !other_tokens)
    impls.token_dispatcher = [own, tensor = impls.tensor] {
      return reduced_dispatcher(own(), tensor);
    };
}

// Returns a function that sums values over the ranks that have different tokens of a sample. It
// uses a stream that `compute` does not wait for.
std::function<Event(Stream&, const Tensor&)> sum_over_tokens(comm::World& world, Device& device,
                                                             const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  const bool over_tp = l.tp > 1 && plan.tensor.sequence_parallel;
  if (l.cp == 1 && !over_tp) return {};
  // If only the ranks of cp, or only those of tp, have different tokens, world.group() returns the
  // group of attention, or that of the linears. Both axes together need a new group.
  const Group ranks = !over_tp ? world.group("cp", plan.mesh, {mesh::Axis::cp})
                      : l.cp == 1
                          ? world.group("tp", plan.mesh, {mesh::Axis::tp})
                          : world.group("cp_tp", plan.mesh, {mesh::Axis::cp, mesh::Axis::tp});
  Stream& stream = device.stream(l.cp > 1 ? device::StreamKind::cp : device::StreamKind::tp);
  return [ranks, &stream](Stream& compute, const Tensor& values) {
    stream.wait(compute.record());  // edge: this rank's values -> their sum
    ranks.all_reduce(values, comm::Reduce::sum, stream);
    return stream.record();
  };
}

}  // namespace

model::ModelImpls apply_parallelism(comm::World& world, Device& device, const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  model::ModelImpls impls;
  impls.padded_vocab = plan::padded_vocab(plan.model.vocab, l.tp);
  impls.quantizer = make_quantizer(plan.fp8, plan.fp8_weights);
  impls.quantized_begin = plan.fp8.begin, impls.quantized_end = plan.fp8.end;
  if (l.tp > 1)
    impls.tensor =
        tensor_parallel(tensor_groups(world, device, world.group("tp", plan.mesh, {mesh::Axis::tp}),
                                      kv_heads(plan.model)),
                        {.sequence = plan.tensor.sequence_parallel,
                         .overlap = plan.overlap.tp_gemm_overlap,
                         .float8_rows_multiple = plan.fp8.rows_multiple});
  if (plan.model.experts()) {
    impls.route_pattern = plan.experts.pattern;
    spread_experts(world, device, plan, impls);
    impls.sum_over_tokens = sum_over_tokens(world, device, plan);
  }
  impls.logits_rows = plan.logits_rows;
  impls.logits_dtype = plan.logits_dtype;
  impls.head_in_fp32 = plan.head_in_fp32;
  if (l.cp == 1) return impls;
  const plan::ContextOptions context = plan.context;
  const auto comm =
      std::make_shared<ContextComm>(device.stream(device::StreamKind::cp), plan.overlap.cp_overlap);
  const Group cp = world.group("cp", plan.mesh, {mesh::Axis::cp});
  Group level, ring;
  if (context.uses(ContextMethod::a2a_p2p)) {
    level = cp_level(world, plan, "cp_a2a", 0);
    ring = cp_level(world, plan, "cp_p2p", 1);
  }
  impls.attention_core = [=, chunks = plan.head_chunks](const model::HeadConfig& heads,
                                                        int64_t layer) {
    using Method = ContextMethod;
    switch (context.of_layer(layer)) {
      case Method::p2p: return p2p_attention(comm, cp, heads);
      case Method::all_gather: return all_gather_attention(comm, cp, heads, chunks.all_gather);
      case Method::a2a: return a2a_attention(comm, cp, heads, chunks.a2a);
      case Method::a2a_p2p: return a2a_p2p_attention(comm, level, ring, heads);
    }
    throw BugError("an unknown cp_comm_type");
  };
  return impls;
}

model::ModelImpls share_layers(comm::World& world, Device& device, const spec::ModelSpec& model) {
  model::ModelImpls impls;
  const int64_t P = world.size();
  impls.padded_vocab = plan::padded_vocab(model.vocab, P);
  if (P == 1) return impls;
  const auto require = [&](bool divides, const char* what, int64_t n) {
    if (!divides)
      throw UserError(fmt::format("{} ranks cannot share a model of {} {}", P, n, what),
                      "start as many ranks as divide the model's heads and widths, or one");
  };
  for (const spec::LayerSpec& layer : model.layers) {
    const auto& a = layer.grouped();
    require(a.heads % P == 0, "attention heads", a.heads);
    require(a.kv_heads % P == 0 || P % a.kv_heads == 0, "key-value heads", a.kv_heads);
    if (const auto* mlp = std::get_if<spec::DenseMlp>(&layer.mlp))
      require(mlp->ffn % P == 0, "elements in a feed-forward layer", mlp->ffn);
    if (const spec::Experts* e = layer.experts()) {
      require(e->ffn % P == 0, "elements in an expert", e->ffn);
      require(e->shared_ffn % P == 0, "elements in a shared expert", e->shared_ffn);
    }
  }
  std::vector<int> all(static_cast<size_t>(P));
  std::iota(all.begin(), all.end(), 0);
  impls.tensor = tensor_parallel(
      tensor_groups(world, device, world.group("tp", all), kv_heads(model)), {.sequence = false});
  const spec::Experts* experts = model.experts();
  if (!experts) return impls;
  impls.divided_experts = true;
  impls.token_dispatcher = [experts = experts->count, tensor = impls.tensor] {
    return reduced_dispatcher(model::local_dispatcher(experts), tensor);
  };
  return impls;
}

SequenceShare sequence_share(const comm::World& world, const RunPlan& plan) {
  return {plan.mesh.coordinate(world.rank(), mesh::Axis::cp), plan.layout.cp,
          plan.tensor.sequence_parallel ? plan.layout.tp : 1};
}

DataGroups data_groups(comm::World& world, Device& device, const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  const mesh::Mesh& mesh = plan.mesh;
  DataGroups g;
  g.rank = int(mesh.index_in_group(world.rank(), mesh::dp_axes()));
  g.size = int(l.dp);
  g.compute = &device.stream(device::StreamKind::compute);
  if (l.gradient_ranks() == 1 && !l.undivided_experts()) return g;
  const bool sharded = plan.data_parallel.shards != plan::ShardLevel::nothing;
  g.grad_stream = &device.stream(device::StreamKind::dp_grad);
  if (sharded) g.param_stream = &device.stream(device::StreamKind::dp_param);
  const comm::Traffic traffic = plan::gather_traffic(plan);
  g.dense.all = world.group("dp_cp", mesh, mesh::dp_cp_axes());
  g.dense.shards = l.dp_replicate == 1 ? g.dense.all
                                       : world.group("dp_shard_cp", mesh, mesh::dp_shard_cp_axes());
  g.dense.replicas = world.group("dp_replicate", mesh, {mesh::Axis::dp_replicate});
  if (sharded) g.dense.gather = world.group("dp_param", mesh, mesh::dp_shard_cp_axes(), traffic);
  if (l.ep == 1 && !l.undivided_experts()) return g;
  const mesh::Mesh moe = plan.moe_mesh();
  g.experts.all = world.group("expert_copies", moe, mesh::expert_copy_axes());
  g.experts.shards =
      l.dp_replicate == 1 ? g.experts.all : world.group("ep_shard", moe, {mesh::Axis::ep_shard});
  g.experts.replicas = g.dense.replicas;
  if (sharded) g.experts.gather = world.group("ep_param", moe, {mesh::Axis::ep_shard}, traffic);
  return g;
}

Group stage_group(comm::World& world, const RunPlan& plan) {
  using enum mesh::Axis;
  return world.group("stage", plan.mesh, {dp_replicate, dp_shard, cp, tp});
}

std::unique_ptr<model::DataParallel> materialize_params(model::ParamStore& params, Stream& compute,
                                                        const DataGroups& groups,
                                                        const RunPlan& plan,
                                                        model::Quantizer* quantizer) {
  const plan::DataParallelOptions& options = plan.data_parallel;
  model::ParamStore::ValueMemory values;
  if (options.gather_updated.registered && !groups.alone())
    values = RegisteredMemory(groups, compute, device::MemoryCategory::params,
                              options.gather_updated.symmetric);
  params.materialize_by_unit(
      compute, plan.compute_dtype, true,
      [&](const model::ParamUnit& unit) {
        return groups.alone() ? model::Sharding{} : sharding_of(groups, unit, options);
      },
      plan.optimizer.master_weights, values);
  if (groups.alone()) return std::make_unique<model::SingleRank>();
  return data_parallel(params, groups, options, quantizer);
}

}  // namespace mtrain::parallel
