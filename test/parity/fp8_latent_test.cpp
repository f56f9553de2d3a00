// Tests latent attention whose linears multiply in 8 bits, as a CPU emulates them.
#include <map>
#include <set>

#include "run/run_checkpoint.h"
#include "test/support/temporary_folder.h"
#include "train_fp8_testing.h"

namespace parity_fp8_latent_test {

using namespace mtrain;
using namespace train_testing;

namespace {

// The bounds of fp8_test.cpp.
constexpr double kLosses = 1e-2, kGradients = 0.15;

// Sizes of four ranks that 16 divides.
const Changes kLatent{"model.num_query_groups=4",  "model.multi_latent_attention=true",
                      "model.q_lora_rank=32",      "model.kv_lora_rank=32",
                      "model.qk_nope_head_dim=16", "model.qk_rope_head_dim=16",
                      "model.v_head_dim=16"};
// Sizes of two ranks that 128 divides. The losses of this model fall as steeply under a smaller
// learning rate.
const Changes kWide{"model.hidden_size=128",     "model.ffn_hidden_size=256",
                    "model.q_lora_rank=128",     "model.kv_lora_rank=128",
                    "model.qk_nope_head_dim=64", "model.qk_rope_head_dim=128",
                    "model.v_head_dim=64",       "optimizer.lr=5e-4"};
const Changes kWithoutQueryLatent{"~model.q_lora_rank"};
const Changes kRoutedExperts{"model.num_layers=3",
                             "model.moe.num_experts=8",
                             "model.moe.ffn_hidden_size=48",
                             "model.moe.shared_expert_ffn_hidden_size=32",
                             "model.moe.first_dense_layers=1",
                             "model.moe.router_topk=2",
                             "model.moe.load_balancing_type=aux_loss",
                             "model.moe.aux_loss_coeff=0.02",
                             "model.moe.z_loss_coeff=0.001",
                             "train.global_batch_size=8",
                             "train.micro_batch_size=2"};

const Changes kCurrent = with(kTensorwise, kLatent), kHistory = with(kDelayed, kLatent),
              kBlockwise =
                  with(with(fp8({"mixed_precision.fp8_recipe=blockwise"}), kLatent), kWide),
              kMx = with(with(fp8({"mixed_precision.fp8_recipe=mxfp8"}), kLatent), kWide);

Changes selective(const std::string& modules) {
  return {"recompute.granularity=selective", "recompute.modules=" + modules};
}

// Returns the types that the GEMMs of some name read in two steps.
std::map<std::string, std::set<DType>> operand_types(const Changes& changes) {
  Run run(changes);
  std::map<std::string, std::set<DType>> types;
  run.device->set_launch_check([&](Stream&, const device::LaunchInfo& info) {
    const std::string name = info.name;
    if (!name.starts_with("matmul_") && !name.starts_with("attention_")) return;
    types[name].insert(info.reads.at(0).dtype);
    if (name.starts_with("matmul_")) types[name].insert(info.reads.at(1).dtype);
  });
  run.losses(2);
  run.device->set_launch_check({});
  return types;
}

}  // namespace

TEST_CASE("latent attention in 8 bits follows bf16 for 30 steps") {
  const auto check = [](const Changes& bf16, const std::vector<Changes>& recipes,
                        const Changes& more) {
    const Result reference = train_alone(with(bf16, more), 30);
    CHECK(reference.losses.back() < 0.6 * reference.losses.front());
    for (const Changes& changes : recipes) {
      CAPTURE(changes, more);
      const Result result = train_alone(with(changes, more), 30);
      check_close(reference.losses, result.losses, kLosses);
      check_gradients(reference, result, kGradients);
      CHECK(result.losses[0] != reference.losses[0]);
    }
  };
  const Changes narrow = with(kBf16, kLatent), wide = with(narrow, kWide);
  for (const Changes& queries : {Changes{}, kWithoutQueryLatent}) {
    check(narrow, {kCurrent, kHistory, with(kCurrent, {"mixed_precision.fp8=e4m3"})}, queries);
    check(wide, {kBlockwise, kMx}, queries);
  }
  check(narrow, {kCurrent, kHistory}, kRoutedExperts);
}

TEST_CASE("all linears of latent attention read 8 bits, and the core of attention does not") {
  const std::set<DType> e4m3{DType::f8e4m3}, both{DType::f8e4m3, DType::f8e5m2};
  for (const Changes& changes : {kCurrent, kHistory, kBlockwise, kMx}) {
    CAPTURE(changes);
    const auto types = operand_types(changes);
    for (const std::string linear : {"matmul_qkv", "matmul_proj"}) {
      CHECK(types.at(linear + "_fwd") == e4m3);
      CHECK(types.at(linear + "_dgrad") == both);
      CHECK(types.at(linear + "_wgrad") == both);
    }
    for (const char* core : {"attention_fwd", "attention_bwd"})
      CHECK(types.at(core) == std::set<DType>{DType::bf16});
  }
}

TEST_CASE("layouts of latent attention in 8 bits give the losses of one rank") {
  struct Layout {
    int ranks;
    Changes changes;
  };
  const std::vector<Layout> layouts{
      {2, {"distributed.strategy=ddp"}},
      {2, {"distributed.strategy=fsdp2"}},
      {2, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
      {2, with(selective("[mla_up_proj]"), {"distributed.strategy=fsdp2", "distributed.tp_size=2",
                                            "distributed.sequence_parallel=true"})},
      {2,
       {"distributed.strategy=fsdp2", "distributed.tp_size=2", "distributed.sequence_parallel=true",
        "comm_overlap.tp_comm_overlap=true"}},
      {2, {"distributed.strategy=fsdp2", "distributed.cp_size=2"}},
      {2,
       {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}"}},
      {2,
       {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.vpp_size=1",
        "distributed.pipeline.pp_schedule=zero_bubble"}},
      {4,
       {"distributed.strategy=fsdp2", "distributed.tp_size=2", "distributed.sequence_parallel=true",
        "mixed_precision.fp8_param_gather=true"}}};
  for (const Changes& scales : {kCurrent, kHistory, kBlockwise, kMx}) {
    const Changes base = with(scales, {"train.micro_batch_size=3"});
    const Result one = train_alone(base, compared_steps(8));
    for (const Layout& layout : layouts) {
      if (&layout == &layouts.back() && base == with(kMx, {"train.micro_batch_size=3"})) continue;
      CAPTURE(scales, layout.changes);
      for (const Result& r :
           train_ranks(layout.ranks, with(base, layout.changes), compared_steps(8)))
        check_close(one.losses, r.losses, kLosses);
    }
  }
}

TEST_CASE("recomputed latents, heads and layers change no bit in 8 bits") {
  for (const Changes& scales : {kCurrent, kHistory, kBlockwise, kMx}) {
    const auto reference = Run(scales).losses(4);
    for (const Changes& more :
         {selective("[mla_up_proj]"), selective("[mla_up_proj, core_attn, layernorm]"),
          selective("[layernorm]"), Changes{"recompute.cheap=false"},
          Changes{"recompute.granularity=full", "recompute.num_layers=1"}}) {
      CAPTURE(scales, more);
      CHECK(Run(with(scales, more)).losses(4) == reference);
    }
    CHECK(train_alone(scales, 4).losses == reference);  // evaluates in between
  }
}

TEST_CASE("latent attention that is gathered in 8 bits has the bits of a gather in bf16") {
  const Changes eight{"train.micro_batch_size=1", "train.global_batch_size=8"};
  for (const Changes& scales : {kCurrent, kHistory, kBlockwise})
    for (const auto& [ranks, layout] :
         {std::pair{2, kFsdp2}, std::pair{2, kMegatron},
          std::pair{
              4, with(kFsdp2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"})}}) {
      CAPTURE(scales, layout);
      const Changes changes = with(with(scales, eight), layout);
      const auto bf16 = train_ranks(ranks, changes, 4),
                 bytes = train_ranks(ranks,
                                     with(changes, {"mixed_precision.fp8_param_gather=true"}), 4);
      for (size_t i = 0; i < bf16.size(); ++i) {
        CHECK(bf16[i].losses == bytes[i].losses);
        CHECK(bf16[i].norms == bytes[i].norms);
        CHECK((bf16[i].gradients == bytes[i].gradients));
        CHECK((bf16[i].weights == bytes[i].weights));
        CHECK(bf16[i].evaluation == bytes[i].evaluation);
      }
    }
}

TEST_CASE("latent attention in 8 bits resumes with the same bits") {
  for (const Changes& scales : {kCurrent, kHistory}) {
    CAPTURE(scales);
    const TemporaryFolder root;
    Run straight(scales), first(scales), second(scales);
    const auto reference = straight.losses(6);
    first.losses(3);
    const auto folder = run::save_run(first.trainer, root.path);
    second.losses(1);
    run::resume_run(second.trainer, folder);
    CHECK(second.losses(3) == std::vector<double>(reference.begin() + 3, reference.end()));
    CHECK(second.scales() == straight.scales());
  }
  // Three roles for each of: five linears of attention and two of the MLP, in two layers.
  Run history(kHistory);
  history.losses(1);
  const std::string scales = history.scales();
  CHECK(std::ranges::count(scales, '\n') == 3 * 2 * (5 + 2));
  CHECK(scales.find("layers.0.attention.kv_down.input") != scales.npos);
}

}  // namespace parity_fp8_latent_test
