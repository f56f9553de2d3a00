// Tests the rules of context parallelism and overlap, and that what is not supported is refused.
#include <cstdlib>

#include "base/error.h"
#include "plan/rules/unsupported.h"
#include "recipe_cases.h"

namespace plan_overlap_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using Catch::Matchers::Contains;

TEST_CASE("sequences and packs must divide into the ranks that share them") {
  const Overrides cp4{"distributed.cp_size=4"};
  const auto with = [&](Overrides o) {
    o.push_back("distributed.cp_size=4");
    return o;
  };
  const std::string sizes = "model.hierarchical_context_parallel_sizes=";
  expect_error({.what = "sequence", .world = 4, .set = with({"dataset.seq_length=1020"})},
               "dataset.seq_length", "2 x cp_size = 8");
  expect_accepts({.what = "sequence fits", .world = 4, .set = with({"dataset.seq_length=1016"})});
  expect_error({.what = "list", .world = 4, .set = with({"model.cp_comm_type=[p2p,all_gather]"})},
               "distributed.cp_comm_type", "2 entries for 8 layers");
  expect_accepts({.what = "list fits",
                  .world = 4,
                  .set = with({"model.cp_comm_type=[p2p,allgather,a2a,p2p,p2p,p2p,p2p,p2p]"})});
  expect_error({.what = "unknown", .world = 4, .set = with({"model.cp_comm_type=ring"})},
               "distributed.cp_comm_type", "`ring`");
  expect_error({.what = "a2a heads",
                .world = 4,
                .set = with({"model.cp_comm_type=a2a", "model.num_attention_heads=2",
                             "model.num_query_groups=none"})},
               "distributed.cp_comm_type", "");
  expect_error({.what = "a2a kv heads",
                .world = 4,
                .set = with({"model.cp_comm_type=a2a", "model.num_query_groups=2"})},
               "distributed.cp_comm_type", "2 key-value heads");
  expect_accepts({.what = "a2a fits", .world = 4, .set = with({"model.cp_comm_type=a2a"})});
  expect_error({.what = "no sizes", .world = 4, .set = with({"model.cp_comm_type=a2a+p2p"})},
               "distributed.hierarchical_context_parallel_sizes", "needs the sizes");
  expect_error({.what = "three levels",
                .world = 8,
                .set = {"distributed.cp_size=8", "model.cp_comm_type=a2a+p2p", sizes + "[2,2,2]"}},
               "distributed.hierarchical_context_parallel_sizes", "3 levels");
  expect_error(
      {.what = "product", .world = 4, .set = with({"model.cp_comm_type=a2a+p2p", sizes + "[2,4]"})},
      "distributed.hierarchical_context_parallel_sizes", "2 x 4 = 8");
  expect_error(
      {.what = "first level",
       .world = 4,
       .set = with({"model.cp_comm_type=a2a+p2p", sizes + "[4,1]", "model.num_query_groups=2"})},
      "distributed.cp_comm_type", "first level");
  expect_accepts({.what = "hierarchy fits",
                  .world = 4,
                  .set = with({"model.cp_comm_type=a2a+p2p", sizes + "[2,2]"})});
  expect_warning({.what = "unused sizes", .world = 4, .set = with({sizes + "[2,2]"})},
                 "distributed.hierarchical_context_parallel_sizes", "ignored");
  expect_error({.what = "decentralized",
                .world = 4,
                .set = with({"model.cp_comm_type=a2a+p2p", sizes + "[2,2]",
                             "dist.use_decentralized_pg=true"})},
               "distributed.use_decentralized_pg", "levels");
  expect_error({.what = "window p2p", .world = 4, .set = with({"model.window_size=64"})},
               "distributed.cp_comm_type", "sliding");
  expect_accepts({.what = "window all_gather",
                  .world = 4,
                  .set = with({"model.window_size=64", "model.cp_comm_type=all_gather"})});
  expect_accepts(
      {.what = "packing batch",
       .set = {"packed_sequence.packed_sequence_size=4096", "train.micro_batch_size=2"}});
  expect_error({.what = "packs of too many tokens",
                .set = {"packed_sequence.packed_sequence_size=1000000000",
                        "train.micro_batch_size=2", "train.global_batch_size=2"}},
               "packed_sequence.packed_sequence_size",
               "2 packs of 1000000000 tokens has more than 1073741824 tokens");
  expect_error({.what = "packing cp",
                .world = 4,
                .set = with({"packed_sequence.packed_sequence_size=4100"})},
               "packed_sequence.packed_sequence_size", "2 x cp_size = 8");
  expect_error(
      {.what = "packing positions",
       .set = {"packed_sequence.packed_sequence_size=4096", "model.max_position_embeddings=2048"}},
      "packed_sequence.packed_sequence_size", "max_position_embeddings 2048");
  expect_accepts(
      {.what = "packing length",
       .world = 4,
       .set = with({"packed_sequence.packed_sequence_size=4096", "dataset.seq_length=1001"})});
  expect_resolved({.what = "packing fits",
                   .world = 4,
                   .set = with({"packed_sequence.packed_sequence_size=4096"})},
                  "packed_sequence.packed_sequence_size", "padded");
}

TEST_CASE("tensor-parallel overlap asked for must be possible") {
  const char* tp = "comm_overlap.tp_comm_overlap";
  expect_warning({.what = "tp 1", .set = {"model.tp_comm_overlap=true"}}, tp, "tp_size 1");
  expect_warning(
      {.what = "no sp", .world = 2, .set = {"model.tp_comm_overlap=true", "distributed.tp_size=2"}},
      tp, "sequence_parallel");
  expect_accepts({.what = "tp",
                  .world = 2,
                  .set = {"model.tp_comm_overlap=true", "distributed.tp_size=2",
                          "distributed.sequence_parallel=true"}});
  expect_error({.what = "strict", .set = {"model.tp_comm_overlap=true", "debug.strict=true"}}, tp,
               "is disabled");
  expect_accepts({.what = "false is fine", .set = {"model.tp_comm_overlap=false"}});
  expect_warning(
      {.what = "preset elsewhere",
       .world = 2,
       .set = {"model.tp_comm_overlap=true", "distributed.tp_size=2",
               "distributed.sequence_parallel=true",
               "model.tp_comm_overlap_cfg=userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen2048"}},
      "comm_overlap.tp_comm_overlap_cfg", "hidden_size 6144 (here 256)");
  expect_error(
      {.what = "preset misspelt",
       .set = {"model.tp_comm_overlap_cfg=userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen204"}},
      "comm_overlap.tp_comm_overlap_cfg", "no preset");
  expect_error(
      {.what = "product misspelt", .set = {"model.tp_comm_overlap_cfg={qkv_fpro: {method: bulk}}"}},
      "comm_overlap.tp_comm_overlap_cfg", "no GEMM");
  expect_error({.what = "method impossible",
                .set = {"model.tp_comm_overlap_cfg={qkv_fprop: {method: pipeline}}"}},
               "comm_overlap.tp_comm_overlap_cfg", "ring_exchange");
  expect_error({.what = "a weight gradient cannot be split",
                .set = {"model.tp_comm_overlap_cfg={qkv_wgrad: {method: ring_exchange}}"}},
               "comm_overlap.tp_comm_overlap_cfg", "nothing to split");
  expect_error({.what = "dgrad with wgrad",
                .set = {"model.tp_comm_overlap_cfg={qkv_dgrad: {method: pipeline}, qkv_wgrad: "
                        "{method: bulk}}"}},
               "comm_overlap.tp_comm_overlap_cfg", "nothing to hide");
  expect_warning({.what = "cfg without overlap",
                  .set = {"model.tp_comm_overlap_cfg={qkv_fprop: {num_sm: 2}}"}},
                 "comm_overlap.tp_comm_overlap_cfg", "ignored");
}

TEST_CASE("gathers by copy engines need a GPU, a sharded optimizer, and one host") {
  const auto with = [](Overrides more) {
    Overrides all{"ddp.nccl_ub=true", "train.device=cuda", "distributed.strategy=fsdp2"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_no_warning({.what = "all of it", .world = 8, .set = with({})});
  expect_no_warning(
      {.what = "ZeRO 3",
       .world = 8,
       .set = with({"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"})});
  expect_no_warning({.what = "a replica per host",
                     .world = 16,
                     .set = with({"distributed.dp_replicate_size=2"})});
  expect_warning({.what = "a CPU", .world = 8, .set = with({"train.device=cpu"})}, "ddp.nccl_ub",
                 "train.device is cpu");
  expect_warning({.what = "one rank", .set = with({})}, "ddp.nccl_ub", "not shared");
  expect_no_warning(
      {.what = "full parameters", .world = 8, .set = with({"distributed.strategy=megatron_ddp"})});
  expect_warning(
      {.what = "nothing is sharded", .world = 8, .set = with({"distributed.strategy=ddp"})},
      "ddp.nccl_ub", "the optimizer is not sharded");
  expect_warning({.what = "two hosts", .world = 16, .set = with({})}, "ddp.nccl_ub",
                 "several hosts");
  expect_warning({.what = "nothing registered",
                  .world = 8,
                  .set = {"ddp.disable_symmetric_registration=true"}},
                 "ddp.disable_symmetric_registration", "nccl_ub is off");
  expect_no_warning({.what = "registered without windows",
                     .world = 8,
                     .set = with({"ddp.disable_symmetric_registration=true"})});
}

TEST_CASE("overlap of pipeline, gradients and context asked for must be possible") {
  expect_warning(
      {.what = "p2p, one stage", .world = 4, .set = pipeline({"model.overlap_p2p_comm=true"})},
      "comm_overlap.overlap_p2p_comm", "single stage");
  expect_warning({.what = "p2p, no pipeline", .set = {"model.overlap_p2p_comm=true"}},
                 "comm_overlap.overlap_p2p_comm", "no pipeline");
  expect_accepts({.what = "p2p", .world = 4, .set = interleaved({"model.overlap_p2p_comm=true"})});
  expect_accepts({.what = "batch", .world = 4, .set = interleaved({"model.batch_p2p_comm=true"})});
  expect_accepts({.what = "neither", .world = 4, .set = pipeline({"model.batch_p2p_comm=false"})});
  expect_accepts(
      {.what = "neither, several stages",
       .world = 4,
       .set = interleaved({"model.batch_p2p_comm=false", "model.overlap_p2p_comm=false"})});
  expect_warning({.what = "batch, no pipeline", .set = {"model.batch_p2p_comm=true"}},
                 "comm_overlap.batch_p2p_comm", "no pipeline");
  expect_warning({.what = "reduce alone", .set = megatron({"ddp.overlap_grad_reduce=true"})},
                 "ddp.overlap_grad_reduce", "not shared");
  expect_accepts({.what = "reduce over cp",
                  .world = 2,
                  .set = megatron({"ddp.overlap_grad_sync=true", "distributed.cp_size=2"})});
  expect_warning({.what = "align", .world = 4, .set = megatron({"ddp.align_param_gather=true"})},
                 "ddp.align_param_gather", "no pipeline");
  expect_accepts({.what = "align fits",
                  .world = 8,
                  .set = megatron(interleaved({"ddp.align_param_gather=true"}))});
  expect_accepts(
      {.what = "with step fits",
       .world = 8,
       .set = megatron(interleaved({"ddp.overlap_param_gather_with_optimizer_step=true"}))});
  expect_warning({.what = "cp", .set = {"comm_overlap.cp_overlap=true"}}, "comm_overlap.cp_overlap",
                 "cp_size 1");
  expect_accepts({.what = "cp fits",
                  .world = 2,
                  .set = {"comm_overlap.cp_overlap=true", "distributed.cp_size=2"}});
  expect_warning({.what = "embedding", .set = {"model.defer_embedding_wgrad_compute=true"}},
                 "comm_overlap.defer_embedding_wgrad_compute", "no pipeline");
  expect_accepts({.what = "embedding fits",
                  .world = 4,
                  .set = pipeline({"model.defer_embedding_wgrad_compute=true"})});
  expect_error({.what = "limit", .set = {"model.wgrad_deferral_limit=-1"}},
               "comm_overlap.wgrad_deferral_limit", "range");
  expect_warning({.what = "limit unused", .set = {"model.wgrad_deferral_limit=2"}},
                 "comm_overlap.wgrad_deferral_limit", "ignored");
  expect_warning({.what = "backward stream",
                  .world = 4,
                  .set = pipeline({"model.overlap_p2p_backward_on_comm_stream=true"})},
                 "comm_overlap.overlap_p2p_backward_on_comm_stream", "single stage");
  expect_accepts(
      {.what = "backward stream fits", .world = 4, .set = fine("backward_on_comm_stream=true")});
  expect_error({.what = "without p2p",
                .world = 4,
                .set = interleaved({"model.overlap_p2p_backward_on_comm_stream=true",
                                    "model.overlap_p2p_comm=false"})},
               "comm_overlap.overlap_p2p_backward_on_comm_stream", "overlap_p2p_comm");
  expect_warning(
      {.what = "layer wgrad", .set = {"model.overlap_p2p_with_transformer_layer_wgrad=true"}},
      "comm_overlap.overlap_p2p_with_transformer_layer_wgrad", "no pipeline");
  expect_warning(
      {.what = "delayed layers", .set = {"model.overlap_p2p_wgrad_delayed_layer_number=2"}},
      "comm_overlap.overlap_p2p_wgrad_delayed_layer_number", "no pipeline");
  expect_error(
      {.what = "delayed layers, too many", .world = 4, .set = fine("wgrad_delayed_layer_number=2")},
      "comm_overlap.overlap_p2p_wgrad_delayed_layer_number", "a chunk has 1");
  expect_accepts({.what = "delayed layers fit",
                  .world = 4,
                  .set = interleaved(
                      {"model.overlap_p2p_wgrad_delayed_layer_number=2", "model.num_layers=16"})});
  expect_error({.what = "delay", .set = {"model.delay_wgrad_compute=true"}},
               "comm_overlap.delay_wgrad_compute", "fine_grained_1f1b");
  expect_accepts({.what = "delay fits",
                  .world = 4,
                  .set = interleaved({"model.delay_wgrad_compute=true",
                                      "model.overlap_p2p_backward_on_comm_stream=true"})});
}

TEST_CASE("the fine-grained 1F1B and deferred outputs need schedules that have room for them") {
  const char* stream = "comm_overlap.overlap_p2p_backward_on_comm_stream";
  const char* delayed = "comm_overlap.overlap_p2p_with_transformer_layer_wgrad";
  const char* deferred = "comm_overlap.defer_embedding_wgrad_compute";
  const auto with = [](const char* schedule, const char* field) {
    return interleaved({std::string("distributed.pipeline.pp_schedule=") + schedule,
                        std::string(field) + "=true", "train.global_batch_size=16"});
  };
  expect_error({.what = "breadth first", .world = 4, .set = with("looped_bfs", stream)}, stream,
               "looped_bfs runs no forward");
  expect_error({.what = "zero bubble", .world = 4, .set = with("zero_bubble", stream)}, stream,
               "dfs and dualpipev do");
  expect_accepts({.what = "depth first", .world = 4, .set = with("dfs", stream)});
  expect_error({.what = "breadth first, delays", .world = 4, .set = with("looped_bfs", delayed)},
               delayed, "looped_bfs runs no forward");
  expect_error({.what = "zero bubble, delays", .world = 4, .set = with("zero_bubble", delayed)},
               delayed, "zero_bubble runs no forward");
  expect_error({.what = "V, delays", .world = 4, .set = with("v_schedule", delayed)}, delayed,
               "v_schedule runs no forward");
  const char* fine_grained = "comm_overlap.fine_grained_1f1b";
  expect_accepts({.what = "pairs alone", .world = 4, .set = with("dfs", fine_grained)});
  expect_error(
      {.what = "pairs, breadth first", .world = 4, .set = with("looped_bfs", fine_grained)},
      fine_grained, "looped_bfs runs no forward");
  for (const char* flag :
       {"overlap_p2p_backward_on_comm_stream=true", "overlap_p2p_wgrad_delayed_layer_number=2",
        "overlap_p2p_with_transformer_layer_wgrad=true"})
    expect_error(
        {.what = "a flag without pairs",
         .world = 4,
         .set = interleaved({"model.num_layers=16", "model.fine_grained_1f1b=false",
                             std::string("model.") + flag})},
        ("comm_overlap." + std::string(flag).substr(0, std::string(flag).find('='))).c_str(),
        "fine_grained_1f1b is false");
  expect_accepts({.what = "dualpipev", .world = 4, .set = with("dualpipev", stream)});
  expect_error({.what = "output in a V", .world = 4, .set = with("v_schedule", deferred)}, deferred,
               "first rank");
  expect_accepts({.what = "output", .world = 4, .set = with("zero_bubble", deferred)});
}

TEST_CASE("expert-parallel overlap asked for must be possible, and launch settings must fit") {
  const std::string moe = "comm_overlap.overlap_moe_expert_parallel_comm";
  expect_accepts({.what = "moe", .world = 4, .set = experts({moe + "=true"})});
  expect_accepts({.what = "moe delay",
                  .world = 4,
                  .set = experts({moe + "=true", "model.delay_wgrad_compute=true"})});
  expect_warning(
      {.what = "moe with one micro-batch",
       .world = 4,
       .set = experts({moe + "=true", "train.global_batch_size=4", "train.micro_batch_size=1"})},
      moe.c_str(), "moe_dispatch_chunks");
  expect_warning({.what = "moe with one connection",
                  .world = 4,
                  .set = experts({moe + "=true", "distributed.strategy=megatron_ddp",
                                  "launch.cuda_device_max_connections=1"})},
                 "launch.cuda_device_max_connections", "one queue");
  expect_warning({.what = "moe ep 1", .set = {"model.moe=8", moe + "=true"}}, moe.c_str(),
                 "ep_size 1");
  expect_error({.what = "moe dispatcher",
                .world = 4,
                .set = experts({moe + "=true", "model.moe_token_dispatcher_type=allgather"})},
               moe.c_str(), "dispatcher");
  expect_accepts(
      {.what = "moe fp32", .world = 4, .set = experts({moe + "=true", "mixed_precision=fp32"})});
  expect_error(
      {.what = "moe full recompute", .world = 4, .set = experts({moe + "=true", "recompute=full"})},
      moe.c_str(), "full layers are recomputed");
  expect_error({.what = "moe recomputed",
                .world = 4,
                .set = experts({moe + "=true", "recompute=selective", "recompute.modules=[moe]"})},
               moe.c_str(), "recomputed");
  expect_error({.what = "moe shared",
                .world = 4,
                .set = experts({moe + "=true", "model.moe.shared_expert_overlap=true",
                                "model.moe.shared_expert_ffn_hidden_size=64"})},
               moe.c_str(), "shared");
  expect_error(
      {.what = "moe pipeline",
       .world = 16,
       .set = experts({moe + "=true", "distributed.pp_size=4", "distributed.pipeline={}"})},
      moe.c_str(), "several stages");
  expect_error({.what = "connections", .set = {"launch.cuda_device_max_connections=1"}},
               "launch.cuda_device_max_connections", "fsdp2");
  expect_accepts(
      {.what = "connections fit", .set = megatron({"launch.cuda_device_max_connections=1"})});
}

TEST_CASE("a feature without execution is refused by name") {
  const auto built = [](int64_t world, const Overrides& o) {
    Diagnostics diagnostics;
    check_supported(recipe_of(world, o), diagnostics);
    return diagnostics.text(recipe::Severity::error);
  };
  REQUIRE(built(1, {}).empty());
  REQUIRE(built(1, {"comm.backend=gloo"}).empty());
  REQUIRE(built(2, {"distributed.cp_size=2"}).empty());
  REQUIRE(built(1, {"train.device=cuda"}).empty());
  REQUIRE(built(1, {"train.device=cuda", "launch.layernorm_sm_margin=8"}).empty());
  REQUIRE(built(1, {"train.device=cuda", "launch.gemm_sm_margin=8"}).empty());
  REQUIRE(built(1, {"checkpoint.async=true"}).empty());
  REQUIRE_THAT(built(1, {"model.tp_comm_overlap_cfg={qkv_fprop: {atomic_gemm: true}}"}),
               Contains("atomic_gemm"));
  REQUIRE(built(1, {"model.moe=8"}).empty());
  REQUIRE(built(2, {"model.moe=8", "distributed.tp_size=2"}).empty());
  const auto experts_in_8_bits = [&](const char* scales) {
    return built(1,
                 {"model.moe=8", "model.ffn_hidden_size=768", "mixed_precision.fp8=hybrid",
                  "debug.emulate_fp8=true", std::string("mixed_precision.fp8_recipe=") + scales});
  };
  for (const char* scales : {"tensorwise", "delayed"}) REQUIRE(experts_in_8_bits(scales).empty());
  REQUIRE(built(2, {"distributed.strategy=fsdp2", "mixed_precision=fp16_mixed",
                    "distributed.mp_policy.reduce_dtype=float16"})
              .empty());
  REQUIRE_THAT(built(1, {"mixed_precision={name: fp16_mixed, fp8: hybrid}", "train.device=cuda"}),
               Contains("8-bit GEMMs with fp16"));
  const Overrides fp8{"mixed_precision.fp8=hybrid", "train.device=cuda"};
  const auto fp8_and = [&](const char* more) {
    Overrides o = fp8;
    o.push_back(more);
    return built(1, o);
  };
  REQUIRE(built(1, fp8).empty());
  REQUIRE(fp8_and("mixed_precision.fp8_recipe=delayed").empty());
  const auto blocks = [&](const char* scales, const char* gpu) {
    return built(1, {"mixed_precision.fp8=hybrid", "train.device=cuda",
                     std::string("mixed_precision.fp8_recipe=") + scales,
                     std::string("hardware.gpu=") + gpu, "model.ffn_hidden_size=768"});
  };
  REQUIRE(blocks("blockwise", "h100").empty());
  REQUIRE(blocks("mxfp8", "b200").empty());
  REQUIRE(fp8_and("mixed_precision.fp8_param_gather=true").empty());
  REQUIRE_THAT(built(1, {"mixed_precision.fp8=hybrid"}), Contains("debug.emulate_fp8"));
  REQUIRE(built(1, {"mixed_precision.fp8=hybrid", "debug.emulate_fp8=true"}).empty());
  REQUIRE(built(1, {"packed_sequence.packed_sequence_size=64"}).empty());
}

TEST_CASE("features of pipelines that are not executed yet are refused by name") {
  const auto built = [](const Overrides& o) {
    Diagnostics diagnostics;
    check_supported(recipe_of(8, o), diagnostics);
    return diagnostics.text(recipe::Severity::error);
  };
  REQUIRE(built(pipeline({})).empty());
  REQUIRE(built(megatron(interleaved({"ddp.align_param_gather=true"}))).empty());
  const auto refused = [&](const Overrides& o, const char* field) {
    REQUIRE_THAT(built(o), Contains(std::string(field) + ": not supported yet"));
  };
  refused(pipeline({"distributed.pipeline.dtype=float16"}), "distributed.pipeline.dtype");
  REQUIRE(built(pipeline({"distributed.pipeline.dtype=float32"})).empty());
}

}  // namespace plan_overlap_test
