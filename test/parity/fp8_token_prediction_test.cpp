// Tests multi-token prediction whose linears multiply in 8 bits, as a CPU emulates them.
#include <map>
#include <set>

#include "token_prediction_testing.h"
#include "train_fp8_testing.h"

namespace parity_fp8_token_prediction_test {

using namespace mtrain;
using namespace train_testing;
using token_prediction_testing::Losses;

namespace {

// The bound of fp8_test.cpp.
constexpr double kLosses = 1e-2;

const Changes kModel{"model.mtp_num_layers=2", "model.mtp_loss_scaling_factor=0.5",
                     "model.num_query_groups=4", "train.micro_batch_size=3"};
const Changes kLatent{
    "model.multi_latent_attention=true", "model.q_lora_rank=32",      "model.kv_lora_rank=32",
    "model.qk_nope_head_dim=16",         "model.qk_rope_head_dim=16", "model.v_head_dim=16"};
const Changes kRoutedExperts{"model.moe.num_experts=8", "model.moe.ffn_hidden_size=64",
                             "model.moe.first_dense_layers=1",
                             "model.moe.shared_expert_ffn_hidden_size=32"};
const Changes kWide{"model.hidden_size=128", "model.ffn_hidden_size=256", "model.kv_channels=64"};
const Changes kBlockwise = with(fp8({"mixed_precision.fp8_recipe=blockwise"}), kWide),
              kMx = with(fp8({"mixed_precision.fp8_recipe=mxfp8"}), kWide);

std::vector<Losses> train(int ranks, const Changes& changes, int64_t steps) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Losses> results(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    results[size_t(rank.rank())] = token_prediction_testing::train(
        r, rank.device, rank.world, steps, std::make_shared<CountingData>());
  });
  return results;
}

// The losses of all depths are close.
void expect_follows(const Losses& reference, const Losses& result) {
  check_close(reference.result.losses, result.result.losses, kLosses);
  check_close(reference.further, result.further, kLosses);
  CHECK(result.result.evaluation == Approx(reference.result.evaluation).epsilon(kLosses));
}

// Returns the types that the GEMMs of that name read in a step.
std::set<DType> operand_types(const Changes& changes, const std::string& gemm) {
  Run run(changes);
  std::set<DType> types;
  run.device->set_launch_check([&](Stream&, const device::LaunchInfo& info) {
    if (info.name == gemm) types.insert({info.reads.at(0).dtype, info.reads.at(1).dtype});
  });
  run.losses(1);
  run.device->set_launch_check({});
  return types;
}

// Returns the types that each GEMM of the projections of both inputs reads in a step, by its name.
std::map<std::string, std::set<DType>> projection_types(const Changes& changes) {
  Run run(changes);
  std::map<std::string, std::set<DType>> types;
  run.device->set_launch_check([&](Stream&, const device::LaunchInfo& info) {
    const std::string name = info.name;
    if (name.starts_with("matmul_") && run.device->scope().ends_with(".prediction_input"))
      types[name].insert({info.reads.at(0).dtype, info.reads.at(1).dtype});
  });
  run.losses(1);
  run.device->set_launch_check({});
  return types;
}

}  // namespace

TEST_CASE("losses of further tokens in 8 bits follow those in bf16 for 30 steps") {
  const auto check = [](const Changes& bf16, const std::vector<Changes>& recipes,
                        const Changes& more) {
    const Losses reference = train(1, with(bf16, with(kModel, more)), 30)[0];
    CHECK(reference.result.losses.back() < 0.8 * reference.result.losses.front());
    CHECK(reference.further.back() < reference.further.front());
    for (const Changes& changes : recipes) {
      CAPTURE(changes, more);
      const Losses result = train(1, with(changes, with(kModel, more)), 30)[0];
      expect_follows(reference, result);
      CHECK(result.further[0] != reference.further[0]);
    }
  };
  for (const Changes& more : {Changes{}, kLatent, Changes{"model.mtp_use_repeated_layer=true"},
                              with(kLatent, kRoutedExperts)})
    check(kBf16, {kTensorwise, kDelayed}, more);
  check(with(kBf16, kWide), {kBlockwise, kMx}, {});
}

TEST_CASE("the layers of further tokens are in 8 bits, and in bf16 beside a last layer in bf16") {
  // The projection of both inputs has the name of an MLP's first linear.
  const std::set<DType> e4m3{DType::f8e4m3};
  CHECK(operand_types(with(kTensorwise, kModel), "matmul_fc1_fwd") == e4m3);
  const auto ends = [](int at_start, int at_end) {
    return with(with(kTensorwise, kModel),
                {"mixed_precision.first_last_layers_bf16=true",
                 fmt::format("mixed_precision.num_layers_at_start_in_bf16={}", at_start),
                 fmt::format("mixed_precision.num_layers_at_end_in_bf16={}", at_end)});
  };
  CHECK(operand_types(ends(1, 1), "matmul_fc1_fwd") == std::set<DType>{DType::bf16});
  CHECK(operand_types(ends(1, 0), "matmul_fc1_fwd") == std::set<DType>{DType::bf16, DType::f8e4m3});
  CHECK(operand_types(ends(2, 0), "matmul_fc1_fwd") == std::set<DType>{DType::bf16});
  CHECK(train(1, ends(1, 1), 3)[0].further == train(1, with(kBf16, kModel), 3)[0].further);
}

TEST_CASE("the projection of both inputs reads 8 bits in forward and in both passes of backward") {
  using Types = std::map<std::string, std::set<DType>>;
  const auto types = [](const std::set<DType>& forward, const std::set<DType>& backward) {
    return Types{{"matmul_fc1_fwd", forward},
                 {"matmul_fc1_dgrad", backward},
                 {"matmul_fc1_wgrad", backward}};
  };
  const std::set<DType> e4m3{DType::f8e4m3}, both{DType::f8e4m3, DType::f8e5m2}, bf16{DType::bf16};
  for (const Changes& scales : {kTensorwise, kDelayed, kBlockwise, kMx})
    for (const Changes& more : {Changes{}, Changes{"model.mtp_use_repeated_layer=true"}}) {
      CAPTURE(scales, more);
      CHECK((projection_types(with(scales, with(kModel, more))) == types(e4m3, both)));
    }
  CHECK((projection_types(with(kTensorwise, with(kModel, {"mixed_precision.fp8=e4m3"}))) ==
         types(e4m3, e4m3)));
  CHECK((projection_types(with(kBf16, kModel)) == types(bf16, bf16)));
  CHECK((projection_types(
             with(kTensorwise, with(kModel, {"mixed_precision.first_last_layers_bf16=true",
                                             "mixed_precision.num_layers_at_start_in_bf16=0",
                                             "mixed_precision.num_layers_at_end_in_bf16=1"}))) ==
         types(bf16, bf16)));
}

TEST_CASE("rows of text are padded to the plan's multiple for each rank of tensor parallelism") {
  constexpr int64_t kLongest = 13;
  const Recipe r = tiny(with(with(with(kBlockwise, kModel), rows_of(kLongest)),
                             {"model.num_attention_heads=8", "model.num_query_groups=8",
                              "model.kv_channels=128", "model.ffn_hidden_size=1024",
                              "distributed.tp_size=8", "distributed.sequence_parallel=true"}),
                        8);
  for (const int64_t multiple : {1, 4}) {
    std::set<int64_t> rows;  // of rank 0
    run_ranks(8, "thread", [&](TestRank& rank) {
      RunPlan plan = plan::make_plan(r, 8, kVocab);
      plan.fp8.rows_multiple = multiple;
      train::Trainer t = train::build_trainer(rank.device, std::move(plan),
                                              std::make_shared<ShortRows>(kLongest), rank.world);
      if (rank.rank() == 0)
        rank.device.set_launch_check([&](Stream&, const device::LaunchInfo& info) {
          if (std::string(info.name) == "matmul_fc1_fwd" &&
              rank.device.scope().ends_with(".prediction_input"))
            rows.insert(info.reads.at(0).bytes / (2 * r.model.hidden_size));
        });
      t.step();
      rank.device.set_launch_check({});
    });
    // All ranks together have a multiple of 16.
    CHECK(rows == std::set{std::max<int64_t>(2, multiple)});
  }
}

TEST_CASE("layouts of further tokens in 8 bits give the losses of one rank") {
  struct Layout {
    int ranks;
    Changes changes;
    bool experts = false;
  };
  const Changes pp = with(kMegatron, {"distributed.pp_size=2", "distributed.pipeline={}"});
  const std::vector<Layout> layouts{
      {2, {"distributed.strategy=ddp"}},
      {2, kFsdp2},
      {2, with(kFsdp2, {"mixed_precision.fp8_param_gather=true"})},
      {2, with(kMegatron, {"mixed_precision.fp8_param_gather=true"})},
      {2, with(kMegatron, {"distributed.tp_size=2"})},
      {2, with(kFsdp2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"})},
      {2, with(kFsdp2, {"distributed.cp_size=2"})},
      {2, pp},
      {2, with(pp, {"distributed.pipeline.layout=Et|tmmL"})},
      {4, with(kMegatron, {"distributed.pp_size=4", "distributed.pipeline.layout=Et|t|mm|L"})},
      {2, with(kMegatron, {"distributed.pp_size=2", "distributed.vpp_size=1",
                           "distributed.pipeline.pp_schedule=zero_bubble"})},
      {1, {"recompute=full"}},
      {2, with(kMegatron, {"distributed.ep_size=2"}), true},
      {4, with(kFsdp2, {"distributed.ep_size=2", "mixed_precision.fp8_param_gather=true"}), true}};
  for (const Changes& scales : {kTensorwise, kDelayed})
    for (const bool experts : {false, true}) {
      const Changes base =
          with(scales, with(with(kModel, experts ? with(kLatent, kRoutedExperts) : Changes{}),
                            {"train.global_batch_size=8", "train.micro_batch_size=2"}));
      const Losses one = train(1, base, compared_steps(8))[0];
      for (const Layout& layout : layouts) {
        if (layout.experts && !experts) continue;
        CAPTURE(scales, experts, layout.changes);
        for (const Losses& r : train(layout.ranks, with(base, layout.changes), compared_steps(8)))
          expect_follows(one, r);
      }
    }
}

}  // namespace parity_fp8_token_prediction_test
