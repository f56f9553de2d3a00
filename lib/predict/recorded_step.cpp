#include "predict/recorded_step.h"

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

RecordedStep record_step(RunPlan plan, int rank) {
  auto data = even_data(plan);
  return record_step(std::move(plan), rank, std::move(data));
}

RecordedStep record_step(RunPlan plan, int rank, std::shared_ptr<const data::Dataset> data) {
  const std::string obstacle = recording_obstacle(plan);
  MT_CHECK(obstacle.empty(), "a step cannot be recorded: {}", obstacle);
  MT_CHECK(rank >= 0 && rank < plan.layout.world, "rank {} of {}", rank, plan.layout.world);
  plan.graphs.on = false;
  // A run's last step does not prepare another.
  plan.train.epochs = {};
  plan.train.steps = kRecorded + 1;
  const auto device = Device::recording(plan.device.kind, options_of(plan.device));
  const comm::World world = world_of(plan, rank);
  RecordedStep recorded;
  {
    train::Trainer trainer = train::build_trainer(*device, std::move(plan), std::move(data), world);
    for (int64_t step = 1; step < kRecorded; ++step) trainer.step();
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
