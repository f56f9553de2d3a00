#include "predict/recorded_step.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/recording/recording_transport.h"
#include "comm/world.h"
#include "device/device.h"
#include "predict/even_data.h"
#include "train/build_trainer.h"

namespace mtrain::predict {

namespace {

// The second step does not count the tokens of its batch, as the first did: the first has begun to.
constexpr int64_t kRecorded = 2;

device::DeviceOptions options_of(const plan::DevicePlan& plan) {
  return {.norm_sm_margin = plan.norm_sm_margin,
          .gemm_sm_margin = plan.gemm_sm_margin,
          .dependent_launch = plan.dependent_launch,
          .fixed_attention_order = plan.deterministic,
          .own_attention = plan.own_attention,
          .own_grouped_gemm = plan.own_grouped_gemm};
}

comm::World world_of(const RunPlan& plan, int rank) {
  const auto size = int(plan.layout.world);
  return size == 1 ? comm::World::alone() : comm::World(rank, size, comm::recording_transport());
}

// Whether gradients of units that are sharded need more memory at once than one pass after the
// other does, since weight gradients wait. How units take turns in it then depends on all actions.
bool holds_sharded_grads(const RunPlan& plan) {
  if (plan.data_parallel.shards < plan::ShardLevel::gradients) return false;
  const plan::PipelineOptions& p = plan.pipeline;
  return p.split_wgrad || p.delayed_layers > 0 || p.deferred_outputs > 0 ||
         std::ranges::any_of(plan.schedule.ranks, [](const schedule::ActionList& list) {
           return std::ranges::any_of(list, [](const schedule::Action& a) {
             return a.overlaps_next || a.kind == schedule::ActionKind::W;
           });
         });
}

// Whether the computations of the first step change what later ones enqueue: scales in 8 bits have
// a history then, and routers may have tables of tokens and experts.
bool needs_first_step(const RunPlan& plan) {
  // The head and the embedding use the memory of a table that they share at the same time.
  const bool holds_table =
      plan.model.tied_embeddings && plan.data_parallel.shards >= plan::ShardLevel::gradients;
  // Recomputation, adapters and further tokens use sharded units in orders of their own.
  const bool orders_units =
      plan.data_parallel.shards >= plan::ShardLevel::gradients &&
      (plan.recompute.group > 0 || plan.model.lora || plan.model.mtp.depths > 0);
  return plan.fp8.on || plan.model.experts() || holds_table || orders_units ||
         holds_sharded_grads(plan);
}

}  // namespace

std::string recording_obstacle(const RunPlan& plan) {
  if (plan.optimizer.muon.on && plan.layout.world > plan.layout.pp)
    return "ranks that share Muon's matrices ask each other for the parts that they have";
  if (plan.layout.pp > 1 && plan.model.mtp.depths > 0 &&
      plan.data_parallel.shards == plan::ShardLevel::parameters)
    return "its pipeline has multi-token prediction and parameters that are sharded over data "
           "parallelism; such a rank does not count tokens when its record does";
  return "";
}

bool can_skip_stages(const RunPlan& plan) {
  // Stages with and without multi-token prediction send messages of different sizes.
  if (plan.layout.pp == 1 || plan.model.mtp.depths > 0 || holds_sharded_grads(plan)) return false;
  if (!plan.pipeline.overlap) return false;  // computations wait for messages of other stages
  if (plan.data_parallel.shards == plan::ShardLevel::parameters) {
    // A stage that gathers its units at once leaves those of other stages alone, and an update
    // gathers the first units of a rank.
    if (plan.pipeline.max_gathered == 0 ||
        std::ranges::min(plan.layout.layers_of_stage) <= plan.data_parallel.gather.forward_prefetch)
      return false;
  }
  const schedule::Schedule& s = plan.schedule;
  for (int64_t stage = 0; stage + 1 < s.stages; ++stage)
    if (s.rank_of(stage) == s.rank_of(stage + 1)) return false;  // one hands its result to the next
  return std::ranges::none_of(s.ranks, [](const schedule::ActionList& list) {
    return std::ranges::any_of(list, &schedule::Action::overlaps_next);
  });
}

RecordedStep record_step(RunPlan plan, int rank, const std::set<int64_t>& skipped) {
  auto data = even_data(plan);
  return record_step(std::move(plan), rank, std::move(data), skipped);
}

RecordedStep record_step(RunPlan plan, int rank, std::shared_ptr<const data::Dataset> data,
                         const std::set<int64_t>& skipped) {
  MT_CHECK(skipped.empty() || can_skip_stages(plan), "stages of this plan depend on each other");
  const std::string obstacle = recording_obstacle(plan);
  MT_CHECK(obstacle.empty(), "a step cannot be recorded: {}", obstacle);
  MT_CHECK(rank >= 0 && rank < plan.layout.world, "rank {} of {}", rank, plan.layout.world);
  plan.graphs.on = false;
  // A run's last step does not prepare another.
  plan.train.epochs = {};
  plan.train.steps = kRecorded + 1;
  const auto device = Device::recording(plan.device.kind, options_of(plan.device));
  const comm::World world = world_of(plan, rank);
  const bool first_step_matters = needs_first_step(plan);
  RecordedStep recorded;
  {
    train::Trainer trainer = train::build_trainer(*device, std::move(plan), std::move(data), world);
    if (first_step_matters)
      trainer.step();
    else
      trainer.skip_first_step();
    if (!skipped.empty()) trainer.skip_stages(skipped);
    device->set_records(&recorded.records);
    trainer.step();
    device->set_records(nullptr);
  }
  const device::Allocator& memory = device->allocator();
  for (int i = 0; i < device::kMemoryCategories; ++i)
    recorded.memory[size_t(i)] = memory.usage(device::MemoryCategory(i));
  recorded.total = memory.total();
  return recorded;
}

}  // namespace mtrain::predict
