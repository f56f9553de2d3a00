// Compares steps that are recorded without their ranks with steps of trainings: every launch, every
// wait and every peak of memory. A model is a family, and a layout is how ranks share it.
#include <map>
#include <numeric>

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "interchange/model_source.h"
#include "kernels/flops.h"
#include "plan/load_recipe.h"
#include "predict/even_data.h"
#include "predict/recorded_step.h"
#include "predict/step_table.h"
#include "spec/tensors.h"
#include "train/build_trainer.h"

namespace predict_recorded_step_test {

using namespace mtrain;

namespace {

constexpr int64_t kVocab = 256;

using Changes = std::vector<std::string>;

struct Case {
  int ranks;
  Changes more;
};

RunPlan plan_of(const Case& c) {
  Changes all{
      "model.num_layers=4",        "model.hidden_size=64",     "model.num_attention_heads=4",
      "model.num_query_groups=2",  "model.ffn_hidden_size=96", "dataset.seq_length=32",
      "dataset.train=unused",      "train.run_dir=unused",     "train.steps=20",
      "train.global_batch_size=8", "train.micro_batch_size=2", "mixed_precision=fp32",
      "debug.deterministic=true"};
  all.insert(all.end(), c.more.begin(), c.more.end());
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "tiny", all,
                                          diagnostics, c.ranks);
  diagnostics.throw_if_errors();
  return plan::make_plan(r, c.ranks, kVocab);
}

Changes with_experts(const Changes& more) {
  Changes all{"model.moe.num_experts=4", "model.moe.ffn_hidden_size=48", "model.moe.router_topk=2",
              "debug.route=balanced"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const Case kFamilies[] = {
    {1, {"model.architecture=llama"}},
    {1, {"model.architecture=gpt2", "model.num_query_groups=4"}},
    {1, {"model.architecture=qwen2"}},
    {1, {"model.architecture=qwen3", "model.kv_channels=24"}},
    {1, {"model.architecture=mistral", "model.window_size=8"}},
    {1, {"model.architecture=smollm3"}},
    {1, {"model.architecture=olmo2"}},
    {1, {"model.architecture=gemma2", "model.window_size=8"}},
    {1, {"model.architecture=gemma3_text", "model.window_size=8"}},
    {1, {"model.architecture=granite"}},
    {1, {"model.norm_placement=sandwich", "model.attention_bias=true", "model.activation=gelu"}},
    {1,
     {"model.multi_latent_attention=true", "model.num_query_groups=4", "model.q_lora_rank=48",
      "model.kv_lora_rank=32", "model.qk_nope_head_dim=16", "model.qk_rope_head_dim=8",
      "model.v_head_dim=16"}},
    {1, {"model.mtp_num_layers=2"}},
    {1, with_experts({})},
    {1, with_experts({"model.moe.shared_expert_ffn_hidden_size=64",
                      "model.moe.shared_expert_gate=true", "model.moe.first_dense_layers=1",
                      "model.moe.load_balancing_type=aux_loss"})}};

// A pipeline under fsdp2 with multi-token prediction is missing: its recorded step begins with a
// count of tokens that a training has made in the step before.
const Case kLayouts[] = {
    {1, {"mixed_precision=bf16_mixed", "recompute=full"}},
    {1, {"recompute=selective", "recompute.modules=[core_attn,mlp,norms]"}},
    {1, {"mixed_precision=fp16_mixed", "optimizer.moments=bf16"}},
    {1, {"optimizer.name=muon"}},
    {1, {"peft.dim=4", "mixed_precision=bf16_mixed"}},
    {1,
     {"mixed_precision={name: bf16_mixed, fp8: hybrid}", "debug.emulate_fp8=true",
      "model.hidden_size=128"}},
    {1, {"packed_sequence.packed_sequence_size=32"}},
    {2, {"distributed.strategy=ddp"}},
    {4, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {2, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}},
    {2, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"}},
    {4, {"distributed.strategy=fsdp2", "mixed_precision=bf16_mixed"}},
    {4, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}},
    {2, {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false"}},
    {2, {"distributed.tp_size=2"}},
    {4, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {2,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true",
      "comm_overlap.tp_comm_overlap=true"}},
    {2, {"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}},
    {2, {"distributed.cp_size=2", "distributed.cp_comm_type=all_gather"}},
    {2, {"distributed.cp_size=2", "distributed.cp_comm_type=a2a"}},
    {4, {"distributed.cp_size=2", "distributed.tp_size=2"}},
    {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
    {4, {"distributed.pp_size=4", "distributed.pipeline.pp_schedule=1f1b"}},
    {2,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=interleaved_1f1b",
      "distributed.vpp_size=2"}},
    {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zero_bubble"}},
    {8,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b", "distributed.tp_size=2",
      "distributed.strategy=megatron_ddp"}},
    {2, with_experts({"distributed.ep_size=2", "distributed.strategy=megatron_ddp"})},
    {4, with_experts({"distributed.ep_size=2", "distributed.strategy=fsdp2"})},
    {2, with_experts({"distributed.ep_size=2", "model.moe.token_dispatcher=all_gather",
                      "distributed.strategy=megatron_ddp"})},
    {2, with_experts({"distributed.ep_size=2", "comm_overlap.moe_dispatch_chunks=2",
                      "distributed.strategy=megatron_ddp"})},
    {4, with_experts({"distributed.ep_size=2", "distributed.tp_size=2",
                      "distributed.sequence_parallel=true", "distributed.strategy=megatron_ddp"})},
    {4,
     with_experts({"distributed.ep_size=2", "distributed.pp_size=2",
                   "distributed.pipeline.pp_schedule=1f1b", "distributed.strategy=megatron_ddp"})}};

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

std::string describe(const Case& c) {
  return fmt::format("{} ranks: {}", c.ranks, fmt::join(c.more, " "));
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
