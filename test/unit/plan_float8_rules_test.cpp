// Tests the rules of 8-bit linears, violated alone and satisfied at their boundary.
#include <fmt/core.h>

#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_float8_rules_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

TEST_CASE("8-bit linears are refused where the device, the scales or the sizes do not fit") {
  expect_error({.what = "a gather of two 8-bit forms",
                .set = {"mixed_precision={fp8: hybrid, fp8_recipe: mxfp8, fp8_param_gather: true}",
                        "hardware.gpu=b200", "model.ffn_hidden_size=768"}},
               "mixed_precision.fp8_param_gather", "differently for forward and for backward");
  expect_error({.what = "fp8 on a100", .set = {"mixed_precision.fp8=hybrid", "hardware.gpu=a100"}},
               "mixed_precision.fp8", "a100");
  expect_accepts({.what = "fp8 on l40s",
                  .set = {"mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=tensorwise",
                          "hardware.gpu=l40s", "train.device=cuda"}});
  expect_error({.what = "fp8 on a cpu", .set = {"mixed_precision.fp8=hybrid", "train.device=cpu"}},
               "mixed_precision.fp8", "CPU");
  expect_accepts({.what = "fp8 on h100",
                  .set = {"mixed_precision.fp8=hybrid", "mixed_precision.fp8_param_gather=true"}});
  expect_error({.what = "fp8 of odd sizes",
                .set = {"mixed_precision.fp8=hybrid", "model.ffn_hidden_size=712"}},
               "model.ffn_hidden_size", "multiple of 16, not 712");
  expect_error(
      {.what = "fp8 of odd sizes per rank",
       .world = 2,
       .set = {"mixed_precision.fp8=hybrid", "model.ffn_hidden_size=720", "distributed.tp_size=2"}},
      "model.ffn_hidden_size", "multiple of 16, not 360");
  expect_accepts(
      {.what = "fp8 emulated",
       .set = {"mixed_precision.fp8=e4m3", "train.device=cpu", "debug.emulate_fp8=true"}});
  expect_error({.what = "nothing to emulate", .set = {"debug.emulate_fp8=true"}},
               "debug.emulate_fp8", "no 8-bit");
  expect_error({.what = "a history of current scales",
                .set = {"mixed_precision.fp8=hybrid", "model.fp8_amax_history_len=16"}},
               "mixed_precision.fp8_amax_history_len", "no history");
  expect_accepts(
      {.what = "a history of delayed scales",
       .set = {"mixed_precision={fp8: hybrid, fp8_recipe: delayed, fp8_amax_history_len: 16, "
               "fp8_amax_compute_algo: max, fp8_margin: 1}"}});
}

TEST_CASE("layers in bf16 beside 8-bit ones are counted within the model") {
  const std::string on = "mixed_precision={fp8: hybrid, first_last_layers_bf16: true}";
  const auto more = [&](const Overrides& set) {
    Overrides all{on, "model.num_layers=4"};
    all.insert(all.end(), set.begin(), set.end());
    return all;
  };
  expect_accepts({.what = "one and one", .set = more({})});
  expect_accepts(
      {.what = "Megatron's names",
       .set = {"mixed_precision.fp8=hybrid", "model.first_last_layers_bf16=true",
               "model.num_layers_at_start_in_bf16=2", "model.num_layers_at_end_in_bf16=0"}});
  expect_error({.what = "without 8 bits", .set = {"mixed_precision.first_last_layers_bf16=true"}},
               "mixed_precision.first_last_layers_bf16", "no 8-bit");
  expect_error({.what = "delayed", .set = more({"mixed_precision.fp8_recipe=delayed"})},
               "mixed_precision.first_last_layers_bf16", "delayed scales");
  expect_error({.what = "too many", .set = more({"mixed_precision.num_layers_at_start_in_bf16=4"})},
               "mixed_precision.num_layers_at_start_in_bf16", "more than the model's 4 layers");
  expect_warning({.what = "all", .set = more({"mixed_precision.num_layers_at_start_in_bf16=3"})},
                 "mixed_precision.first_last_layers_bf16", "none of the 4 layers");
  expect_warning(
      {.what = "off", .set = {"mixed_precision.fp8=hybrid", "model.num_layers_at_end_in_bf16=2"}},
      "mixed_precision.num_layers_at_end_in_bf16", "ignored");
}

namespace {

const Overrides kBlocks{"mixed_precision={fp8: e4m3, fp8_recipe: blockwise}", "train.device=cuda",
                        "model.ffn_hidden_size=768", "model.kv_channels=64"};
Overrides also(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_CASE("scales of blocks are refused where the device or the sizes do not fit") {
  const Overrides mx{"mixed_precision={fp8: e4m3, fp8_recipe: mxfp8}", "train.device=cuda",
                     "hardware.gpu=b200"};
  expect_accepts({.what = "blockwise on h100", .set = kBlocks});
  expect_accepts({.what = "blockwise on h200", .set = also(kBlocks, {"hardware.gpu=h200"})});
  expect_error({.what = "blockwise on b200", .set = also(kBlocks, {"hardware.gpu=b200"})},
               "mixed_precision.fp8_recipe", "compute capability 9 (h100, h200), not b200");
  expect_error({.what = "blocks on a100", .set = also(kBlocks, {"hardware.gpu=a100"})},
               "mixed_precision.fp8", "a100");
  expect_accepts({.what = "mxfp8 on b200", .set = mx});
  expect_error({.what = "blocks on l40s", .set = also(kBlocks, {"hardware.gpu=l40s"})},
               "mixed_precision.fp8_recipe", "l40s");
  expect_accepts({.what = "mxfp8 on gb300", .set = also(mx, {"hardware.gpu=gb300"})});
  expect_error({.what = "mxfp8 on h100", .set = also(mx, {"hardware.gpu=h100"})},
               "mixed_precision.fp8_recipe", "compute capability 10 or newer");
  for (const char* scales : {"blockwise", "mxfp8"})
    expect_accepts({.what = "emulated",
                    .set = also(kBlocks, {std::string("mixed_precision.fp8_recipe=") + scales,
                                          "train.device=cpu", "debug.emulate_fp8=true"})});
  expect_error(
      {.what = "ffn of blocks of 128", .set = also(kBlocks, {"model.ffn_hidden_size=704"})},
      "model.ffn_hidden_size", "multiple of 128, not 704");
  expect_accepts({.what = "ffn of blocks of 32", .set = mx});  // 704
  expect_error({.what = "ffn beside blocks of 32", .set = also(mx, {"model.ffn_hidden_size=720"})},
               "model.ffn_hidden_size", "multiple of 32, not 720");
  expect_error({.what = "a rank's ffn",
                .world = 2,
                .set = also(kBlocks, {"distributed.tp_size=2", "model.ffn_hidden_size=896"})},
               "model.ffn_hidden_size", "multiple of 128, not 448");
  // 4 groups of 64 are 256 columns: two ranks have whole blocks of them, four have not.
  const auto ranks = [&](int64_t n) {
    return Setting{.what = "a rank's keys",
                   .world = n,
                   .set = also(kBlocks, {fmt::format("distributed.tp_size={}", n),
                                         "model.ffn_hidden_size=1024"})};
  };
  expect_accepts(ranks(2));
  expect_error(ranks(4), "model.num_query_groups", "multiple of 128, not 64");
  expect_warning({.what = "margin", .set = also(kBlocks, {"mixed_precision.fp8_margin=1"})},
                 "mixed_precision.fp8_margin", "ignored");
  expect_error({.what = "history", .set = also(mx, {"mixed_precision.fp8_amax_history_len=4"})},
               "mixed_precision.fp8_amax_history_len", "no history");
}

TEST_CASE("under scales of blocks on a GPU, a multiple of four tokens is multiplied at once") {
  expect_error({.what = "odd tokens", .set = also(kBlocks, {"dataset.seq_length=1022"})},
               "dataset.seq_length", "multiple of 4 tokens, not 1022");
  // Under sequence parallelism a rank projects its own rows for multi-token prediction.
  const Overrides rows =
      also(kBlocks, {"distributed.tp_size=2", "distributed.sequence_parallel=true",
                     "model.ffn_hidden_size=1024", "dataset.seq_length=4100"});
  expect_accepts({.what = "rows of all ranks", .world = 2, .set = rows});
  expect_error({.what = "own rows", .world = 2, .set = also(rows, {"model.mtp_num_layers=1"})},
               "dataset.seq_length", "multiple of 4 tokens, not 2050");
  // A ring's chunks are the rows of a rank: 2052 are a multiple of 4, and 2050 are not.
  const auto ring = [&](const std::string& gemm, int64_t length) {
    return also(rows, {"comm_overlap.tp_comm_overlap=true",
                       "comm_overlap.tp_comm_overlap_cfg={" + gemm + "}",
                       fmt::format("dataset.seq_length={}", length)});
  };
  for (const std::string gemm : {"qkv_fprop", "fc2_dgrad"}) {
    const std::string method = gemm + ": {method: ring_exchange}";
    expect_accepts({.what = "rings", .world = 2, .set = ring(method, 4104)});
    expect_error({.what = "rings", .world = 2, .set = ring(method, 4100)},
                 "comm_overlap.tp_comm_overlap_cfg." + gemm,
                 "chunks of a multiple of 4 tokens, not 2050");
    expect_accepts({.what = "rings under another scale",
                    .world = 2,
                    .set = also(ring(method, 4100), {"mixed_precision.fp8_recipe=tensorwise"})});
  }
  // A ring that gathers may send the chunks of two of four ranks at once.
  const auto at_once = [&](const std::string& gemm, int64_t length) {
    return Setting{.what = "two chunks at once",
                   .world = 4,
                   .set = also(ring(gemm + ": {method: ring_exchange, aggregate: true}", length),
                               {"distributed.tp_size=4", "model.num_query_groups=8"})};
  };
  expect_accepts(at_once("qkv_fprop", 2056));
  expect_error(at_once("qkv_fprop", 2052), "comm_overlap.tp_comm_overlap_cfg.qkv_fprop",
               "chunks of a multiple of 4 tokens, not 1026");
  expect_error(at_once("fc2_fprop", 2056), "comm_overlap.tp_comm_overlap_cfg.fc2_fprop",
               "chunks of a multiple of 4 tokens, not 514");
  expect_accepts({.what = "rings by default", .world = 2, .set = ring("", 4100)});
  expect_accepts({.what = "pipelines",
                  .world = 2,
                  .set = ring("fc2_fprop: {method: pipeline, num_splits: 3}", 4100)});
}

TEST_CASE("8-bit linears of latent attention need sizes of their own") {
  const auto latent = [](const Overrides& more) {
    Overrides all{"model.multi_latent_attention=true",
                  "model.num_query_groups=8",
                  "model.num_attention_heads=8",
                  "model.q_lora_rank=96",
                  "model.kv_lora_rank=64",
                  "model.qk_nope_head_dim=32",
                  "model.qk_rope_head_dim=16",
                  "model.v_head_dim=32",
                  "model.ffn_hidden_size=768",
                  "mixed_precision={fp8: hybrid}"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  for (const char* scales : {"tensorwise", "delayed"})
    expect_accepts({.what = "scales of tensors",
                    .set = latent({std::string("mixed_precision.fp8_recipe=") + scales})});
  expect_accepts({.what = "a rank's heads",
                  .world = 8,
                  .set = latent({"distributed.tp_size=8", "distributed.sequence_parallel=true"})});
  expect_error({.what = "queries", .set = latent({"model.q_lora_rank=100"})}, "model.q_lora_rank",
               "q_lora_rank of a rank to be a multiple of 16, not 100");
  expect_error({.what = "keys and values", .set = latent({"model.kv_lora_rank=72"})},
               "model.kv_lora_rank", "multiple of 16, not 72");
  expect_error({.what = "a rank's values",
                .world = 8,
                .set = latent({"model.v_head_dim=24", "distributed.tp_size=8"})},
               "model.v_head_dim", "position and values of a rank to be a multiple of 16, not 56");
  expect_error({.what = "a rank's queries",
                .world = 8,
                .set = latent(
                    {"model.qk_nope_head_dim=24", "model.v_head_dim=40", "distributed.tp_size=8"})},
               "model.qk_nope_head_dim", "the width of queries of a rank");
  expect_error({.what = "the first linear of keys and values",
                .set = latent({"mixed_precision.fp8_recipe=mxfp8", "hardware.gpu=b200",
                               "train.device=cuda"})},
               "model.qk_rope_head_dim",
               "kv_lora_rank + qk_rope_head_dim of a rank to be a "
               "multiple of 32, not 80");
  expect_accepts({.what = "scales of 32",
                  .set = latent({"mixed_precision.fp8_recipe=mxfp8", "hardware.gpu=b200",
                                 "train.device=cuda", "model.qk_rope_head_dim=32"})});
}

TEST_CASE("8-bit linears of experts need sizes of their own") {
  const auto experts = [](const Overrides& more) {
    Overrides all{"model.moe=8", "mixed_precision={fp8: hybrid}"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_accepts({.what = "tensorwise", .set = experts({})});
  expect_accepts({.what = "delayed", .set = experts({"mixed_precision.fp8_recipe=delayed"})});
  expect_accepts({.what = "over ranks",
                  .world = 4,
                  .set = experts({"distributed.ep_size=2", "distributed.strategy=fsdp2"})});
  for (const char* scales : {"blockwise", "mxfp8"})
    expect_error({.what = "scales of blocks",
                  .set = experts({std::string("mixed_precision.fp8_recipe=") + scales,
                                  "train.device=cpu", "debug.emulate_fp8=true",
                                  "model.ffn_hidden_size=768", "model.kv_channels=64"})},
                 "mixed_precision.fp8_recipe", "not supported in models with experts");
  expect_accepts(
      {.what = "tensor parallelism",
       .world = 4,
       .set = experts({"distributed.tp_size=2", "distributed.ep_size=2",
                       "distributed.sequence_parallel=true", "model.ffn_hidden_size=768"})});
  expect_accepts(
      {.what = "own widths",
       .set = experts({"model.moe.ffn_hidden_size=48", "model.moe.shared_expert_ffn_hidden_size=80",
                       "model.ffn_hidden_size=712"})});  // no layer is dense
  expect_error({.what = "a dense layer beside them",
                .set = experts({"model.moe.ffn_hidden_size=48", "model.ffn_hidden_size=712",
                                "model.moe.first_dense_layers=1"})},
               "model.ffn_hidden_size", "multiple of 16, not 712");
  expect_error({.what = "width", .set = experts({"model.moe.ffn_hidden_size=40"})},
               "model.moe.ffn_hidden_size", "multiple of 16, not 40");
  expect_error({.what = "width of dense layers", .set = experts({"model.ffn_hidden_size=712"})},
               "model.ffn_hidden_size", "multiple of 16, not 712");
  expect_error(
      {.what = "shared width", .set = experts({"model.moe.shared_expert_ffn_hidden_size=40"})},
      "model.moe.shared_expert_ffn_hidden_size", "multiple of 16, not 40");
}

}  // namespace plan_float8_rules_test
