#include "train/pipeline_setup.h"

#include "plan/process_groups.h"

namespace mtrain::train {

namespace {

model::Recompute recompute_policy(const plan::RecomputeOptions& r) {
  return {.attention_core = r.attention_core,
          .norms = r.norms,
          .mlp = r.mlp,
          .latent_up = r.latent_up,
          .experts = r.experts,
          .experts_act = r.experts_act,
          .shared_expert = r.shared_expert,
          .cheap = r.cheap,
          .group = r.group,
          .layers = r.layers,
          .keeps_router = r.keeps_router};
}

// Sends or receives a first message on a channel. NCCL blocks the hosts of both ranks until both
// have called it for the first time. Here that is safe, since all ranks connect their channels in
// the same order. Within a schedule, two hosts could wait for each other.
void connect(const pipeline::Channel& channel, bool sends) {
  const Tensor word = Tensor::from_host(*channel.stream, {1}, std::vector<float>(1),
                                        device::MemoryCategory::buffers);
  const int peer = 1 - channel.group.rank();
  sends ? channel.group.send(word, peer, *channel.stream)
        : channel.group.receive(word, peer, *channel.stream);
}

}  // namespace

pipeline::PipelineStages pipeline_stages(Stream& compute, model::ParamStore& params,
                                         const RunPlan& plan, int rank,
                                         const model::ModelImpls& impls) {
  const plan::Layout& l = plan.layout;
  const schedule::Schedule& s = plan.schedule;
  MT_CHECK(int64_t(l.layers_of_stage.size()) == s.stages, "{} stages, but the schedule has {}",
           l.layers_of_stage.size(), s.stages);
  const int64_t own = plan.mesh.coordinate(rank, mesh::Axis::pp);
  pipeline::PipelineStages stages;
  model::StageSpec spec{.end = 0, .shares_table = plan::shares_table(plan)};
  for (int64_t stage = 0; stage < s.stages; ++stage) {
    spec.begin = spec.end;
    spec.end += l.layers_of_stage[size_t(stage)];
    spec.embedding = stage == 0;
    spec.head = stage + 1 == s.stages;
    spec.sends_depths = l.predicts_apart && stage == l.prediction_stage();
    spec.receives_depths = l.predicts_apart && spec.head;
    if (s.rank_of(stage) != own) continue;
    params.begin_stage(stage);
    stages[stage] = std::make_unique<model::Gpt>(compute, params, plan.model, plan.sample_length,
                                                 recompute_policy(plan.recompute), impls, spec);
  }
  return stages;
}

pipeline::PipelineLinks pipeline_links(comm::World& world, Device& device, const RunPlan& plan) {
  const plan::Layout& l = plan.layout;
  const schedule::Schedule& s = plan.schedule;
  pipeline::PipelineLinks links{.size = l.pp,
                                .compute = &device.stream(device::StreamKind::compute)};
  if (l.pp == 1) return links;
  const mesh::Mesh& mesh = plan.mesh;
  links.rank = mesh.coordinate(world.rank(), mesh::Axis::pp);
  links.stream = &device.stream(device::StreamKind::pp);
  links.all = world.group("pp", mesh, {mesh::Axis::pp});
  const auto pair = [&](const std::string& name, int64_t a, int64_t b, comm::Traffic traffic) {
    const auto& ranks = links.all.ranks();
    return world.group(name, {ranks[size_t(std::min(a, b))], ranks[size_t(std::max(a, b))]},
                       traffic);
  };
  constexpr auto kMessages = comm::Traffic::messages;
  for (const auto& [from, to] : plan::pipeline_channels(s)) {
    const std::string name = fmt::format("pp {}>{}", from, to);
    if (links.rank == from)
      connect(links.to[to] = {pair(name, from, to, kMessages),
                              &device.stream({device::StreamKind::pp_send, to})},
              true);
    if (links.rank == to)
      connect(links.from[from] = {pair(name, from, to, kMessages),
                                  &device.stream({device::StreamKind::pp_recv, from})},
              false);
  }
  const int64_t first = s.rank_of(0), last = plan::second_table_rank(plan);
  if (plan::shares_table(plan) && (links.rank == first || links.rank == last))
    links.table = pair("pp_table", first, last, comm::Traffic::bulk);
  return links;
}

}  // namespace mtrain::train
