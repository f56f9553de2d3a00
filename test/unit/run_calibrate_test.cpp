// Calibrations of tiny models, on ranks that are threads.
#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "interchange/model_source.h"
#include "plan/saved_recipe.h"
#include "run/calibrate.h"
#include "run/calibration_models.h"

namespace run_calibrate_test {

using namespace mtrain;

namespace {

RunPlan tiny(int64_t world, std::vector<std::string> more) {
  std::vector<std::string> all{
      "model.num_layers=2",       "model.hidden_size=32",  "model.num_attention_heads=2",
      "model.ffn_hidden_size=48", "dataset.seq_length=16", "dataset.train=unused",
      "train.run_dir=unused",     "train.steps=100",       "train.global_batch_size=4",
      "train.micro_batch_size=1", "mixed_precision=fp32",  "train.device=cpu"};
  all.insert(all.end(), more.begin(), more.end());
  return plan::saved_run_plan(interchange::model_source(), {.file = "tiny", .text = "model: {}\n"},
                              all, world, 64);
}

plan::Calibration measure(int ranks, const std::vector<RunPlan>& alone,
                          const std::vector<RunPlan>& shared) {
  plan::Calibration out;
  comm::run_thread_ranks(ranks, [&](comm::World& world) {
    const auto device = Device::cpu(1);
    plan::Calibration c = run::measure_machine(*device, world, 0.1, alone, shared);
    if (world.rank() == 0)
      out = std::move(c);
    else
      CHECK(c.launches.empty());
  });
  return out;
}

void expect_sound(const plan::Calibration& c) {
  plan::Diagnostics diagnostics;
  const std::string text = plan::print_calibration(c);
  plan::read_calibration_text(text, "m.yaml", diagnostics);
  INFO(text);
  CHECK(diagnostics.text(recipe::Severity::error).empty());
  CHECK(c.gap_s > 0);
  CHECK(c.host_s > 0);
}

}  // namespace

TEST_CASE("a calibration of one rank has every launch of its models' steps, by type and size") {
  const plan::Calibration c =
      measure(1,
              {tiny(1, {}), tiny(1, {"mixed_precision=bf16_mixed", "model.hidden_size=64"}),
               tiny(1, {"model.hidden_size=48"})},
              {});
  expect_sound(c);
  CHECK(c.ranks == 1);
  CHECK(c.links.empty());
  REQUIRE(c.find("matmul_qkv_fwd", DType::f32));
  const plan::LaunchTimes& gemm = *c.find("matmul_qkv_fwd", DType::f32);
  REQUIRE(gemm.points.size() == 2);
  // Queries, keys and values of 16 tokens: width x 3 widths.
  CHECK(gemm.points[0].flops == 2.0 * 16 * 32 * 96);
  CHECK(gemm.points[1].flops == 2.0 * 16 * 48 * 144);
  CHECK(c.find("matmul_qkv_fwd", DType::bf16));
  CHECK(c.find("adamw", DType::f32));
}

TEST_CASE("a calibration of two ranks has their links and the launches of their layouts") {
  const plan::Calibration c =
      measure(2, {tiny(1, {})},
              {tiny(2, {"distributed.strategy=ddp"}),
               tiny(2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"})});
  expect_sound(c);
  CHECK(c.ranks == 2);
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                           "exchange", "send"}) {
    CAPTURE(kind);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const plan::LinkTimes* link = c.find_link(kind, dtype, 2);
      REQUIRE(link);
      CHECK(link->dtype == dtype);
      CHECK(link->seconds(1e6) > 0);
    }
  }
  for (const char* stream : {"dp_grad", "tp"}) CHECK(c.stretches.at(stream) > 0);
  // Communication is in the links alone.
  for (const plan::LaunchTimes& t : c.launches) CHECK(t.name != "all_reduce");
}

TEST_CASE("the models of a calibration fit their machine and any number of ranks") {
  CHECK(run::calibration_models({}, 1).size() == 21);
  CHECK(run::calibration_layouts({}, 1).empty());
  for (const int64_t world : {2, 3, 4, 6, 8, 16}) {
    CAPTURE(world);
    const size_t alone = run::calibration_models({}, world).size();
    CHECK(alone == (world <= 4 ? 30 : world <= 8 ? 27 : 23));
    const auto layouts = run::calibration_layouts({}, world);
    CHECK(layouts.size() >= 8);
    for (const RunPlan& plan : layouts) CHECK(plan.layout.world == world);
  }
}

}  // namespace run_calibrate_test
