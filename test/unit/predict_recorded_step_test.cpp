// Compares steps that are recorded without their ranks with steps of trainings: every launch, every
// wait and every peak of memory. A model is a family, and a layout is how ranks share it.
#include <map>
#include <numeric>

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "kernels/flops.h"
#include "predict/even_data.h"
#include "predict/recorded_step.h"
#include "predict/step_table.h"
#include "spec/tensors.h"
#include "test/support/predict_cases.h"
#include "train/build_trainer.h"

namespace predict_recorded_step_test {

using namespace mtrain;
using namespace predict_cases;

namespace {

// A step of each rank of a training; the ranks are threads.
std::vector<predict::RecordedStep> train(const RunPlan& plan) {
  std::vector<predict::RecordedStep> steps(size_t(plan.layout.world));
  comm::run_thread_ranks(int(plan.layout.world), [&](comm::World& world) {
    const auto device = Device::cpu(1, {});
    predict::RecordedStep& step = steps[size_t(world.rank())];
    train::Trainer trainer = train::build_trainer(*device, plan, predict::even_data(plan), world);
    trainer.step();
    device->set_records(&step.records);
    int64_t buffers = 0;  // the most at a launch of the step
    device->set_launch_check([&](Stream&, const device::LaunchInfo&) {
      buffers =
          std::max(buffers, device->allocator().usage(device::MemoryCategory::buffers).current);
    });
    trainer.step();
    device->set_launch_check({});
    device->set_records(nullptr);
    for (int i = 0; i < device::kMemoryCategories; ++i)
      step.memory[size_t(i)] = device->allocator().usage(device::MemoryCategory(i));
    step.total = device->allocator().total();
    // Weights without masters get their first values through a buffer, which no step needs.
    if (plan.model.lora) step.memory[size_t(device::MemoryCategory::buffers)].peak = buffers;
  });
  return steps;
}

std::string text(const device::Records& records, size_t i) {
  const device::LaunchRecord& r = records.items()[i];
  return fmt::format(
      "{} {} of {}{}: {} FLOPs, reads {}, writes {}, sends {} in {}{}", r.name, r.number,
      device::stream_name(r.stream), r.scope ? " in " + *r.scope : "", r.flops,
      fmt::join(r.read, " "), fmt::join(r.written, " "), r.wire_bytes,
      r.group < 0 ? "no group"
                  : fmt::format("{} of {}", records.groups()[size_t(r.group)].name,
                                fmt::join(records.groups()[size_t(r.group)].ranks, " ")),
      r.waits_for ? fmt::format(", for {} of {}", r.waits_number, device::stream_name(*r.waits_for))
                  : "");
}

void expect_same_items(const device::Records& recorded, const device::Records& trained) {
  const size_t count = std::min(recorded.items().size(), trained.items().size());
  for (size_t i = 0; i < count; ++i) {
    const std::string of_recorded = text(recorded, i), of_training = text(trained, i);
    if (of_recorded == of_training) continue;
    CAPTURE(i);
    CHECK(of_recorded == of_training);
    return;
  }
  CHECK(recorded.items().size() == trained.items().size());
}

void expect_recorded_as_trained(const Case& c) {
  INFO(describe(c));
  const RunPlan plan = plan_of(c);
  const std::vector<predict::RecordedStep> trained = train(plan);
  for (int rank = 0; rank < c.ranks; ++rank) {
    CAPTURE(rank);
    const predict::RecordedStep recorded = predict::record_step(plan, rank);
    expect_same_items(recorded.records, trained[size_t(rank)].records);
    for (int i = 0; i < device::kMemoryCategories; ++i) {
      CAPTURE(device::category_name(device::MemoryCategory(i)));
      CHECK(double(recorded.memory[size_t(i)].peak) ==
            Approx(double(trained[size_t(rank)].memory[size_t(i)].peak)).epsilon(0.05));
    }
  }
}

}  // namespace

TEST_CASE("the host reads from a recording device what it has uploaded") {
  const auto device = Device::recording(DeviceKind::cpu, {});
  Stream& stream = device->stream(device::StreamKind::compute);
  for (int64_t count = 1; count < 40; ++count) {
    std::vector<int64_t> values(size_t(count), 0);
    std::iota(values.begin(), values.end(), 7);
    CHECK(Tensor::from_host(stream, {count}, values).to_host<int64_t>(stream) == values);
  }
}

TEST_CASE(
    "a recorded step of every family has the launches, FLOPs, bytes and memory of a training") {
  for (const Case& c : kFamilies) expect_recorded_as_trained(c);
}

TEST_CASE(
    "a recorded step of every layout has the launches, FLOPs, bytes and memory of a training") {
  for (const Case& c : kLayouts) expect_recorded_as_trained(c);
}

// The plan counts 6 FLOPs for each parameter, also for those of norms and biases, which have no
// GEMM.
TEST_CASE("the FLOPs of recorded GEMMs are those that the plan counts for matrices") {
  for (const Case& c : kFamilies) {
    INFO(describe(c));
    const RunPlan plan = plan_of(c);
    double vectors = 0;
    for (const spec::TensorSpec& t : spec::parameters(plan.model))
      if (t.full_shape.rank() == 1) vectors += double(t.full_shape.count());
    const predict::StepTable table = predict::table_of(predict::record_step(plan, 0));
    int64_t flops = 0;
    for (const auto& [kind, sums] : table.rows)
      if (!kind.name.starts_with("attention")) flops += sums.flops;
    const auto tokens = double(plan.train.global_batch_size * plan.sample_length);
    CHECK(double(flops) ==
          Approx((plan.token_cost.matmul_flops - 6 * vectors) * tokens).epsilon(1e-9));
  }
}

TEST_CASE("attended pairs are those that a loop over rows counts") {
  for (const int64_t rows : {1, 5, 16})
    for (const int64_t keys : {1, 7, 16})
      for (const int64_t start : {-20, -3, 0, 4, 30})
        for (const int64_t window : {0, 1, 3, 40})
          for (const bool causal : {false, true}) {
            int64_t pairs = 0;
            for (int64_t i = 0; i < rows; ++i)
              for (int64_t j = 0; j < keys; ++j)
                pairs += (!causal || j <= i + start) && (window == 0 || j > i + start - window);
            CAPTURE(rows, keys, start, window, causal);
            CHECK(kernels::attended_pairs({.B = 1,
                                           .Sq = rows,
                                           .Skv = keys,
                                           .A = 1,
                                           .G = 1,
                                           .D = 1,
                                           .causal = causal,
                                           .q_start = start,
                                           .window = window}) == pairs);
          }
}

TEST_CASE("the table of a long step follows from two short ones") {
  const Changes many{"train.global_batch_size=48", "train.micro_batch_size=1"};
  const Case cases[] = {
      {1, {}},
      {1,
       {"mixed_precision={name: bf16_mixed, fp8: hybrid}", "debug.emulate_fp8=true",
        "model.hidden_size=128"}},
      {2, {"distributed.strategy=fsdp2"}},
      {2, {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false"}},
      {2, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
      {2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
      {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
      {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=gpipe"}},
      {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zero_bubble"}},
      {2,
       {"distributed.pp_size=2", "distributed.vpp_size=2",
        "distributed.pipeline.pp_schedule=interleaved_1f1b"}},
      {2, with_experts({"distributed.ep_size=2", "distributed.strategy=megatron_ddp"})}};
  for (Case c : cases) {
    c.more.insert(c.more.end(), many.begin(), many.end());
    INFO(describe(c));
    const RunPlan plan = plan_of(c);
    for (int rank = 0; rank < c.ranks; ++rank) {
      CAPTURE(rank);
      const predict::StepTable full = predict::table_of(predict::record_step(plan, rank)),
                               scaled = predict::step_table(plan, rank);
      for (const auto& [kind, sums] : full.rows) {
        CAPTURE(kind.part, kind.name, kind.group, device::stream_name(kind.stream));
        const auto row = scaled.rows.find(kind);
        REQUIRE(row != scaled.rows.end());
        CHECK(row->second.count == sums.count);
        CHECK(row->second == sums);
      }
      CHECK(scaled.rows.size() == full.rows.size());
      CHECK(scaled.peaks == full.peaks);
      CHECK(scaled.peak == full.peak);
    }
  }
}

}  // namespace predict_recorded_step_test
