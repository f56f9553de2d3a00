// Tests every rule of layouts, violated alone and satisfied at its boundary: divisibility,
// strategies, experts, pipelines and lengths.
#include <fmt/core.h>

#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/layout.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace plan_layout_rules_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

Overrides with(const char* strategy, Overrides o) {
  o.push_back(std::string("distributed.strategy=") + strategy);
  return o;
}

}  // namespace

TEST_CASE("the world must be divisible as the recipe divides it") {
  expect_error({.what = "product", .world = 6, .set = {"distributed.tp_size=4"}},
               "distributed.tp_size", "tp(4) * pp(1) * cp(1) = 4 does not divide the world of 6");
  expect_error({.what = "one rank", .set = {"distributed.cp_size=2"}}, "distributed.tp_size",
               "world of 1");
  expect_accepts(
      {.what = "fits", .world = 8, .set = {"distributed.tp_size=4", "distributed.cp_size=2"}});
  expect_error(
      {.what = "dp_size", .world = 8, .set = {"distributed.tp_size=2", "distributed.dp_size=2"}},
      "distributed.dp_size", "is 4");
  expect_accepts({.what = "dp_size fits",
                  .world = 8,
                  .set = {"distributed.tp_size=2", "distributed.dp_size=4"}});
  expect_error({.what = "global batch", .world = 64}, "train.global_batch_size",
               "micro-batch 1 * dp 64");
  expect_accepts({.what = "global batch fits", .world = 32});
  expect_error({.what = "replicate", .world = 8, .set = {"distributed.dp_replicate_size=3"}},
               "distributed.dp_replicate_size", "does not divide");
  expect_error({.what = "replicate all", .world = 8, .set = {"distributed.dp_replicate_size=8"}},
               "distributed.dp_replicate_size", "nothing to shard");
  expect_accepts(
      {.what = "replicate half", .world = 8, .set = {"distributed.dp_replicate_size=4"}});
  expect_accepts({.what = "replicate off", .set = {"distributed.dp_replicate_size=1"}});
  expect_warning({.what = "node",
                  .world = 16,
                  .set = {"distributed.tp_size=16", "model.num_attention_heads=16",
                          "model.num_query_groups=16"}},
                 "distributed.tp_size", "exceeds the 8 GPUs");
  expect_no_warning({.what = "node fits",
                     .world = 8,
                     .set = {"distributed.tp_size=8", "model.num_query_groups=8"}});
  expect_warning(
      {.what = "first level leaves the node",
       .world = 16,
       .set = {"distributed.tp_size=4", "distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p",
               "distributed.hierarchical_context_parallel_sizes=[4,1]",
               "model.num_attention_heads=16", "model.num_query_groups=16"}},
      "distributed.hierarchical_context_parallel_sizes", "exceeds the 8 GPUs");
  expect_accepts({.what = "levels without context parallelism",
                  .set = {"distributed.cp_comm_type=a2a+p2p",
                          "distributed.hierarchical_context_parallel_sizes=[2,2]"}});
  expect_warning({.what = "levels are ignored then",
                  .set = {"distributed.cp_comm_type=a2a+p2p",
                          "distributed.hierarchical_context_parallel_sizes=[2,2]"}},
                 "distributed.hierarchical_context_parallel_sizes", "cp_size is 1");
}

TEST_CASE("a strategy refuses the parallelism and the fields that it does not have") {
  expect_error({.what = "unknown", .set = {"distributed.strategy=fsdp3"}}, "distributed.strategy",
               "fsdp3");
  expect_accepts({.what = "any case", .set = {"distributed.strategy=Megatron-FSDP"}});
  expect_error({.what = "ddp tp", .world = 2, .set = with("ddp", {"distributed.tp_size=2"})},
               "distributed.tp_size", "ddp");
  expect_error({.what = "ddp cp", .world = 2, .set = with("ddp", {"distributed.cp_size=2"})},
               "distributed.cp_size", "ddp");
  expect_error({.what = "ddp pp", .world = 2, .set = with("ddp", {"distributed.pp_size=2"})},
               "distributed.pp_size", "ddp");
  expect_error(
      {.what = "ddp ep", .world = 2, .set = with("ddp", {"distributed.ep_size=2", "model.moe=4"})},
      "distributed.ep_size", "ddp");
  expect_error(
      {.what = "ddp sp", .world = 2, .set = with("ddp", {"distributed.sequence_parallel=true"})},
      "distributed.sequence_parallel", "ddp");
  expect_error({.what = "ddp replicate",
                .world = 4,
                .set = with("ddp", {"distributed.dp_replicate_size=2"})},
               "distributed.dp_replicate_size", "fsdp2");
  expect_accepts({.what = "ddp alone", .world = 4, .set = with("ddp", {})});
  expect_error({.what = "mfsdp pp", .world = 2, .set = with("mfsdp", {"distributed.pp_size=2"})},
               "distributed.pp_size", "");
  expect_error({.what = "mfsdp ep",
                .world = 2,
                .set = with("mfsdp", {"distributed.ep_size=2", "model.moe=4"})},
               "distributed.ep_size", "megatron_fsdp");
  expect_error({.what = "mfsdp sp",
                .world = 2,
                .set = with("mfsdp", {"distributed.sequence_parallel=true"})},
               "distributed.sequence_parallel", "megatron_fsdp");
  expect_error({.what = "mfsdp replicate",
                .world = 4,
                .set = with("mfsdp", {"distributed.dp_replicate_size=2"})},
               "distributed.dp_replicate_size", "fsdp2");
  expect_error({.what = "mfsdp selective", .set = with("mfsdp", {"recompute=selective"})},
               "recompute.granularity", "");
  expect_accepts({.what = "mfsdp tp cp",
                  .world = 4,
                  .set = with("mfsdp", {"distributed.tp_size=2", "distributed.cp_size=2"})});
  expect_error({.what = "mddp replicate",
                .world = 4,
                .set = with("megatron_ddp", {"distributed.dp_replicate_size=2"})},
               "distributed.dp_replicate_size", "fsdp2");
  expect_error({.what = "fsdp2 field",
                .set = with("megatron_ddp", {"distributed.defer_fsdp_grad_sync=true"})},
               "distributed.defer_fsdp_grad_sync", "only fsdp2 reads it");
  expect_error({.what = "mfsdp field", .set = {"distributed.zero_dp_strategy=2"}},
               "distributed.zero_dp_strategy", "megatron_fsdp");
  expect_error(
      {.what = "mddp field", .world = 2, .set = with("fsdp2", {"ddp.overlap_grad_reduce=true"})},
      "ddp.overlap_grad_reduce", "megatron_ddp");
  expect_resolved({.what = "ddp section", .world = 2, .set = {"ddp.overlap_grad_reduce=true"}},
                  "distributed.strategy", "megatron_ddp");
  expect_error({.what = "an optimizer sharded by another name",
                .set = {"dist.use_megatron_fsdp=true", "distributed.zero_dp_strategy=0",
                        "ddp.use_distributed_optimizer=true"}},
               "ddp.use_distributed_optimizer", "only megatron_ddp reads it");
  expect_accepts({.what = "use_megatron_fsdp",
                  .world = 2,
                  .set = {"dist.use_megatron_fsdp=true", "distributed.zero_dp_strategy=2"}});
  expect_resolved({.what = "one rank", .set = with("fsdp2", {})}, "distributed.strategy",
                  "nothing is sharded");
}

TEST_CASE("sequences, heads, widths and vocabularies divide by tp, or are padded") {
  expect_warning({.what = "sp without tp", .set = {"distributed.sequence_parallel=true"}},
                 "distributed.sequence_parallel", "tp_size is 1");
  expect_error({.what = "sp and sequence",
                .world = 4,
                .set = {"distributed.tp_size=4", "distributed.sequence_parallel=true",
                        "dataset.seq_length=1022"}},
               "dataset.seq_length", "1022");
  expect_accepts({.what = "sp and sequence that fits",
                  .world = 4,
                  .set = {"distributed.tp_size=4", "distributed.sequence_parallel=true",
                          "dataset.seq_length=1020"}});
  expect_error({.what = "heads by tp",
                .world = 16,
                .set = {"distributed.tp_size=16", "model.num_query_groups=8"}},
               "distributed.tp_size", "8 attention heads");
  expect_error(
      {.what = "kv heads by tp",
       .world = 6,
       .set = {"distributed.tp_size=6", "model.num_attention_heads=12", "model.num_query_groups=4",
               "model.kv_channels=32", "model.ffn_hidden_size=768"}},
      "distributed.tp_size", "key-value heads");
  expect_accepts({.what = "kv heads fewer", .world = 8, .set = {"distributed.tp_size=8"}});
  expect_error({.what = "ffn by tp",
                .world = 8,
                .set = {"distributed.tp_size=8", "model.ffn_hidden_size=700"}},
               "distributed.tp_size", "ffn_hidden_size of 700");
  expect_resolved({.what = "vocabulary of one rank", .set = {"model.vocab_size=513"}},
                  "model.vocab_size", "padded to 640");
  expect_resolved(
      {.what = "vocabulary", .world = 4, .set = {"distributed.tp_size=4", "model.vocab_size=513"}},
      "model.vocab_size", "padded to 1024");
}

TEST_CASE("gathers of parameters overlap only where parameters are sharded") {
  expect_error({.what = "gather without reduce",
                .world = 2,
                .set = with("megatron_ddp",
                            {"ddp.overlap_param_gather=true", "ddp.overlap_grad_reduce=false"})},
               "ddp.overlap_param_gather", "needs overlap_grad_reduce");
  expect_error({.what = "gather unsharded",
                .world = 2,
                .set = with("megatron_ddp", {"ddp.overlap_param_gather=true",
                                             "ddp.use_distributed_optimizer=false"})},
               "ddp.overlap_param_gather", "not sharded");
  expect_error({.what = "gather unsharded is refused though not strict",
                .world = 2,
                .set = with("megatron_ddp", {"ddp.overlap_param_gather=true", "debug.strict=false",
                                             "ddp.use_distributed_optimizer=false"})},
               "ddp.overlap_param_gather", "not sharded");
  expect_error({.what = "gather with step, unsharded",
                .world = 2,
                .set = with("megatron_ddp", {"ddp.overlap_param_gather_with_optimizer_step=true",
                                             "ddp.use_distributed_optimizer=false"})},
               "ddp.overlap_param_gather_with_optimizer_step", "not sharded");
  expect_warning(
      {.what = "with step, one stage",
       .world = 2,
       .set = with("megatron_ddp", {"ddp.overlap_param_gather_with_optimizer_step=true"})},
      "ddp.overlap_param_gather_with_optimizer_step", "single stage");
}

TEST_CASE("emulated links and own kernels are of one kind of device") {
  expect_error({.what = "a link for experts that is not there", .set = {"comm.link.only=ep"}},
               "comm.link.only", "there is no such link");
  expect_error(
      {.what = "slow links between GPUs", .set = {"train.device=cuda", "comm.link.gbps=10"}},
      "comm.link", "train.device is cuda");
  expect_error({.what = "slow GPUs", .set = {"train.device=cuda", "debug.compute_slowdown=2"}},
               "debug.compute_slowdown", "train.device is cuda");
  expect_error(
      {.what = "own attention on CPUs", .set = {"train.device=cpu", "debug.own_attention=true"}},
      "debug.own_attention", "train.device is cpu");
  expect_accepts(
      {.what = "own attention on GPUs", .set = {"train.device=cuda", "debug.own_attention=true"}});
  expect_error({.what = "own GEMMs of experts on CPUs",
                .set = {"train.device=cpu", "debug.own_grouped_gemm=true"}},
               "debug.own_grouped_gemm", "train.device is cpu");
  expect_accepts({.what = "own GEMMs of experts on GPUs",
                  .set = {"train.device=cuda", "debug.own_grouped_gemm=true"}});
}

TEST_CASE("ranges for a profiler have no effect on a CPU") {
  for (const char* key : {"debug.nvtx", "nvtx", "profiling.nvtx_ranges"})
    expect_warning({.what = "a CPU", .set = {"train.device=cpu", fmt::format("{}=true", key)}},
                   "debug.nvtx", "train.device is cpu");
  expect_no_warning({.what = "a GPU", .set = {"train.device=cuda", "debug.nvtx=true"}});
  expect_no_warning({.what = "none", .set = {"train.device=cpu", "nvtx=false"}});
}

TEST_CASE("keys go around a ring in layers without a window alone") {
  const auto types = [](const char* list) {
    return Overrides{"model.window_size=64", "model.window_attn_skip_freq=2",
                     "distributed.cp_size=4", std::string("distributed.cp_comm_type=") + list};
  };
  expect_accepts({.what = "rings in layers without a window",
                  .world = 4,
                  .set = types("[a2a,p2p,all_gather,p2p,a2a,p2p,a2a,p2p]")});
  expect_error({.what = "rings in layers with a window",
                .world = 4,
                .set = types("[a2a,p2p,p2p,all_gather,a2a,p2p,p2p,p2p]")},
               "distributed.cp_comm_type", "(layers 2, 6)");
  expect_error({.what = "one word for layers with and without", .world = 4, .set = types("p2p")},
               "distributed.cp_comm_type", "(layers 0, 2, 4, 6)");
}

TEST_CASE("experts must divide into the ranks that share them") {
  expect_error({.what = "experts' width by tp",
                .world = 8,
                .set = {"distributed.tp_size=8", "model.moe=8", "model.moe.ffn_hidden_size=100"}},
               "distributed.tp_size", "experts' width of 100");
  expect_error({.what = "shared expert's width by tp",
                .world = 8,
                .set = {"distributed.tp_size=8", "model.moe=8", "model.moe.ffn_hidden_size=64",
                        "model.moe.shared_expert_ffn_hidden_size=100"}},
               "distributed.tp_size", "experts' width of 100");
  expect_error({.what = "dense", .world = 4, .set = {"distributed.ep_size=2"}},
               "distributed.ep_size", "dense");
  expect_error({.what = "experts by ep",
                .world = 3,
                .set = {"distributed.ep_size=3", "model.moe=8", "train.global_batch_size=33"}},
               "distributed.ep_size", "8 experts");
  expect_error({.what = "dp cp by ep", .world = 2, .set = experts({})}, "distributed.ep_size",
               "dp(2) * cp(1) = 2");
  expect_accepts({.what = "fits", .world = 4, .set = experts({})});
  expect_accepts({.what = "fits over cp", .world = 4, .set = experts({"distributed.cp_size=2"})});
  expect_error({.what = "not over tp", .world = 4, .set = experts({"distributed.tp_size=2"})},
               "distributed.ep_size", "= 2");
  expect_warning({.what = "moe block", .world = 2, .set = {"distributed.moe={}", "model.moe=8"}},
                 "distributed.moe", "ignored");
}

TEST_CASE("stages, micro-batches and groups must fit the schedule") {
  expect_error({.what = "no block", .world = 4, .set = {"distributed.pp_size=4"}},
               "distributed.pp_size", "needs the section distributed.pipeline");
  expect_accepts({.what = "block", .world = 4, .set = pipeline({})});
  expect_warning({.what = "block without pp", .world = 4, .set = {"distributed.pipeline={}"}},
                 "distributed.pipeline", "ignored");
  expect_accepts({.what = "class name",
                  .world = 4,
                  .set = interleaved({"distributed.pipeline.pp_schedule=Interleaved1F1B"})});
  expect_error(
      {.what = "stages", .world = 4, .set = pipeline({"distributed.pipeline.layers_per_stage=3"})},
      "distributed.pipeline.layers_per_stage", "= 3 stages");
  expect_accepts(
      {.what = "stages up",
       .world = 4,
       .set = pipeline({"distributed.pipeline.layers_per_stage=3",
                        "distributed.pipeline.round_virtual_stages_to_pp_multiple=up"})});
  expect_error({.what = "stages down to none",
                .world = 4,
                .set = pipeline({"distributed.pipeline.layers_per_stage=3",
                                 "distributed.pipeline.round_virtual_stages_to_pp_multiple=down"})},
               "distributed.pipeline.round_virtual_stages_to_pp_multiple", "none");
  expect_error(
      {.what = "1f1b with two",
       .world = 4,
       .set = pipeline({"distributed.pipeline.pp_schedule=1f1b", "distributed.vpp_size=2"})},
      "distributed.pipeline.pp_schedule", "one stage");
  expect_resolved(
      {.what = "two stages per rank", .world = 4, .set = pipeline({"distributed.vpp_size=2"})},
      "distributed.pipeline.pp_schedule", "interleaved_1f1b");
  expect_error(
      {.what = "interleaved with one", .world = 4, .set = interleaved({"distributed.vpp_size=1"})},
      "distributed.pipeline.pp_schedule", "at least two");
  expect_error({.what = "bfs with one",
                .world = 4,
                .set = interleaved(
                    {"distributed.vpp_size=1", "distributed.pipeline.pp_schedule=looped_bfs"})},
               "distributed.pipeline.pp_schedule", "at least two");
  expect_error({.what = "v with three",
                .world = 2,
                .set = {"distributed.pp_size=2", "distributed.vpp_size=3",
                        "distributed.pipeline.pp_schedule=ZBVZeroBubble"}},
               "distributed.pipeline.pp_schedule", "exactly two");
  expect_accepts({.what = "zero bubble with one",
                  .world = 4,
                  .set = interleaved(
                      {"distributed.vpp_size=1", "distributed.pipeline.pp_schedule=zero_bubble"})});
  expect_error(
      {.what = "vpp against lps",
       .world = 4,
       .set = interleaved({"distributed.vpp_size=4", "distributed.pipeline.layers_per_stage=1"})},
      "distributed.vpp_size", "disagrees");
  expect_error(
      {.what = "too few layers", .world = 4, .set = interleaved({"distributed.vpp_size=3"})},
      "model.num_layers", "12 stages");
  expect_resolved({.what = "uneven", .world = 4, .set = pipeline({"model.num_layers=10"})},
                  "distributed.pipeline", "first 2 stages");
}

TEST_CASE("micro-batches come in groups that fit the schedule") {
  expect_error(
      {.what = "micro-batches", .world = 4, .set = interleaved({"train.global_batch_size=9"})},
      "train.global_batch_size", "2 rounds");
  expect_accepts({.what = "micro-batches legal",
                  .world = 4,
                  .set = interleaved({"train.global_batch_size=10"})});
  expect_accepts({.what = "few micro-batches legal",
                  .world = 4,
                  .set = interleaved({"train.global_batch_size=7"})});
  expect_error({.what = "group small",
                .world = 4,
                .set = interleaved({"distributed.pipeline.microbatch_group_size_per_vp_stage=3"})},
               "distributed.pipeline.microbatch_group_size_per_vp_stage", "group of 3");
  expect_error({.what = "group rest",
                .world = 4,
                .set = interleaved(
                    {"train.global_batch_size=8", "model.microbatch_group_size_per_vp_stage=6"})},
               "distributed.pipeline.microbatch_group_size_per_vp_stage", "at least pp_size");
  expect_accepts({.what = "group legal",
                  .world = 4,
                  .set = interleaved({"train.global_batch_size=10",
                                      "model.microbatch_group_size_per_vp_stage=5"})});
  expect_accepts({.what = "group rest legal",
                  .world = 4,
                  .set = interleaved({"train.global_batch_size=9",
                                      "model.microbatch_group_size_per_vp_stage=5"})});
  expect_error({.what = "group of 1f1b",
                .world = 4,
                .set = pipeline({"model.microbatch_group_size_per_vp_stage=4"})},
               "distributed.pipeline.microbatch_group_size_per_vp_stage", "interleaved");
  expect_warning({.what = "1f1b short", .world = 4, .set = pipeline({"train.global_batch_size=3"})},
                 "train.global_batch_size", "fewer");
  expect_no_warning(
      {.what = "1f1b enough", .world = 4, .set = pipeline({"train.global_batch_size=4"})});
  expect_error({.what = "dualpipe short",
                .world = 4,
                .set = interleaved(
                    {"distributed.pipeline.pp_schedule=DualPipeV", "train.global_batch_size=7"})},
               "train.global_batch_size", "at least 2 x pp_size = 8");
  expect_accepts({.what = "dualpipe enough",
                  .world = 4,
                  .set = interleaved({"distributed.pipeline.pp_schedule=DualPipeV",
                                      "train.global_batch_size=8"})});
  expect_error(
      {.what = "local batch",
       .world = 4,
       .set = pipeline({"train.micro_batch_size=4", "distributed.pipeline.pp_microbatch_size=3",
                        "train.global_batch_size=12"})},
      "distributed.pipeline.pp_microbatch_size", "not a whole number");
  expect_error(
      {.what = "global batch",
       .world = 24,
       .set = pipeline({"train.micro_batch_size=8", "distributed.pipeline.pp_microbatch_size=8"})},
      "train.global_batch_size", "micro-batch 8 * dp 6");
}

TEST_CASE("a layout gives each stage its layers, the first the embedding and the last the loss") {
  expect_accepts({.what = "layout",
                  .world = 4,
                  .set = pipeline({"distributed.pipeline.layout='Ett|tt|tt|ttL'"})});
  expect_accepts({.what = "layout groups",
                  .world = 4,
                  .set = pipeline({"distributed.pipeline.layout='E(tt|)*3ttL'"})});
  expect_error({.what = "layout sum",
                .world = 4,
                .set = pipeline({"distributed.pipeline.layout='Et*2|t*2|t*2|tL'"})},
               "distributed.pipeline.layout", "7 layers");
  expect_error({.what = "layout stages",
                .world = 4,
                .set = pipeline({"distributed.pipeline.layout='Et*4|t*2|t*2L'"})},
               "distributed.pipeline.layout", "3 stages");
  expect_error({.what = "layout without loss",
                .world = 4,
                .set = pipeline({"distributed.pipeline.layout='Ett|tt|tt|tt'"})},
               "distributed.pipeline.layout", "L (the loss)");
  expect_error({.what = "layout letter",
                .world = 4,
                .set = pipeline({"distributed.pipeline.layout='Ett|tx|tt|ttL'"})},
               "distributed.pipeline.layout", "`x`");
  expect_error({.what = "layout brackets",
                .world = 4,
                .set = pipeline({"distributed.pipeline.layout='E(tt|tt|ttL'"})},
               "distributed.pipeline.layout", "missing");
}

TEST_CASE("a layout places the depths of multi-token prediction in the last stage, or before it") {
  const char* field = "distributed.pipeline.layout";
  const auto placed = [&](const char* layout, const char* depths) {
    return pipeline(
        {fmt::format("{}='{}'", field, layout), fmt::format("model.mtp_num_layers={}", depths)});
  };
  expect_accepts({.what = "two", .world = 4, .set = placed("Ett|tt|tt|ttmmL", "2")});
  expect_accepts({.what = "repeated", .world = 4, .set = placed("E(tt|)*3ttm*2L", "2")});
  expect_error({.what = "none", .world = 4, .set = placed("Ett|tt|tt|ttL", "1")}, field,
               "has the letter m 0 times, but mtp_num_layers is 1");
  expect_error({.what = "one more", .world = 4, .set = placed("Ett|tt|tt|ttmL", "0")}, field,
               "has the letter m 1 times, but mtp_num_layers is 0");
  expect_accepts({.what = "before the last", .world = 4, .set = placed("Ett|t*3|t*3mm|L", "2")});
  expect_accepts({.what = "alone", .world = 4, .set = placed("Ett|t*6|m|L", "1")});
  expect_accepts({.what = "fewer layers than stages",
                  .world = 4,
                  .set = {"distributed.pp_size=4", "model.num_layers=1", "model.mtp_num_layers=1",
                          "distributed.pipeline.layout='E|t|m|L'"}});
  expect_error({.what = "before layers", .world = 4, .set = placed("Ett|tt|ttm|ttL", "1")}, field,
               "must stand after every t");
  for (const char* layout : {"Ett|ttm|tttt|L", "Ett|tt|ttttm|mL", "Ettm|tt|ttttm|L"})
    expect_error({.what = layout, .world = 4, .set = placed(layout, "2")}, field,
                 "must stand in one stage");
  expect_error({.what = "in the first",
                .world = 2,
                .set = {"distributed.pp_size=2", "model.num_layers=2", "model.mtp_num_layers=1",
                        "distributed.pipeline.layout='Ettm|L'"}},
               field, "must not stand in the first stage");
  Overrides tied = placed("Ett|t*6|m|L", "1");
  tied.push_back("model.share_embeddings_and_output_weights=true");
  expect_error({.what = "tied", .world = 4, .set = tied}, field, "the table of tied embeddings");
}

TEST_CASE("a schedule from a file does each micro-batch of each stage once") {
  const TemporaryFolder folder;
  const std::string path = (folder / "schedule.csv").string();
  const auto with_file = [&](const std::string& text) {
    write_file_atomic(path, text);
    return Overrides{"distributed.pp_size=2", "distributed.pipeline.pp_schedule_csv=" + path,
                     "train.global_batch_size=2"};
  };
  const char* field = "distributed.pipeline.pp_schedule_csv";
  expect_accepts(
      {.what = "whole", .world = 2, .set = with_file("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1I1,1W1\n")});
  expect_accepts(
      {.what = "crossed", .world = 2, .set = with_file("0F1,0F0,0B1,0B0\n1F0,1B0,1F1,1B1\n")});
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"0F0,0F1,,0B0,0B1\n", "has 1 rows, but pp_size is 2"},
           {"", "has 0 rows"},
           {"0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1\n,\n", "row 2 holds no actions"},
           {"0F0,x\n1F0\n", "row 1, cell 2: `x` is not an action"},
           {"0F0,0B0,0F1,0B1\n2F0\n", "there are 2 stages"},
           {"0F0,0B0,0F1,0B1,0F2\n1F0\n", "there are 2 micro-batches"},
           {"0F0,0B0,0F1,0B1\n1F0,1B0,0F1\n", "rank 1, action 2: 0F1: stage 0 is on rank 0"},
           {"0F0,0F0\n1F0,1B0\n", "rank 0, action 1: 0F0 comes twice"},
           {"0B0,0F0\n1F0,1B0\n", "0B0 comes before 0F0"},
           {"0F0,0W0\n1F0,1B0\n", "0W0 comes before 0I0"},
           {"0F0\n1F0\n", "2 actions are too few for 2 stages and 2 micro-batches"},
           {"0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1I1\n", "rank 1 does 1I1 and never 1W1"},
           {"0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
            "deadlock: rank 0 waits at 0RECV_B1 for rank 1, rank 1 waits at 1RECV_F1 for rank 0"}})
    expect_error({.what = text, .world = 2, .set = with_file(text)}, field, part);
  expect_error(
      {.what = "no file",
       .world = 2,
       .set = {"distributed.pp_size=2", "distributed.pipeline.pp_schedule_csv=nowhere.csv"}},
      field, "nowhere.csv");
  expect_error({.what = "a device",
                .world = 2,
                .set = {"distributed.pp_size=2", "distributed.pipeline.pp_schedule_csv=/dev/zero"}},
               field, "is not a file");
}

TEST_CASE("a rank's share of a sequence must divide into its parts under sequence parallelism") {
  expect_error({.what = "sp, cp and sequence",
                .world = 6,
                .set = {"distributed.tp_size=2", "distributed.cp_size=3",
                        "distributed.sequence_parallel=true", "model.ffn_hidden_size=704",
                        "dataset.seq_length=1023"}},
               "dataset.seq_length", "not a multiple of 2 x cp_size = 6");
  expect_error({.what = "sp, cp and sequence of two chunks",
                .world = 8,
                .set = {"distributed.tp_size=4", "distributed.cp_size=2",
                        "distributed.sequence_parallel=true", "dataset.seq_length=1020"}},
               "dataset.seq_length",
               "tp_size(4) x cp_size(2) = 8 parts, which do not divide its length 1020");
  expect_error({.what = "sp and packs",
                .world = 4,
                .set = {"distributed.tp_size=4", "distributed.sequence_parallel=true",
                        "packed_sequence.packed_sequence_size=1022"}},
               "packed_sequence.packed_sequence_size", "do not divide its length 1022");
  const Overrides odd{"distributed.tp_size=4", "distributed.sequence_parallel=true",
                      "packed_sequence.packed_sequence_size=1022"};
  const auto packs = [&](int n) {
    Overrides set = odd;
    set.push_back(fmt::format("train.micro_batch_size={}", n));
    set.push_back(fmt::format("train.global_batch_size={}", n));
    return set;
  };
  expect_accepts({.what = "sp and two packs in a row", .world = 4, .set = packs(2)});
  expect_error({.what = "sp and three packs in a row", .world = 4, .set = packs(3)},
               "packed_sequence.packed_sequence_size",
               "do not divide its length micro-batch(3) x pack(1022) = 3066");
  expect_accepts({.what = "sp and packs, whatever the length of other samples",
                  .world = 4,
                  .set = {"distributed.tp_size=4", "distributed.sequence_parallel=true",
                          "dataset.seq_length=1022", "packed_sequence.packed_sequence_size=2048"}});
  expect_resolved(
      {.what = "sp and packs that ranks share are padded",
       .world = 8,
       .set = {"distributed.tp_size=4", "distributed.cp_size=2",
               "distributed.sequence_parallel=true", "packed_sequence.packed_sequence_size=2044"}},
      "packed_sequence.packed_sequence_size", "a rank's share of a pack to one of tp_size 4");
}

TEST_CASE("the lengths that a hint names are legal for every rule about them") {
  const Diagnostics diagnostics =
      check(8, {"distributed.tp_size=4", "distributed.cp_size=2",
                "distributed.sequence_parallel=true", "dataset.seq_length=1022"});
  REQUIRE(diagnostics.sorted().size() >= 1);
  for (const auto& p : diagnostics.sorted())
    if (p.severity == recipe::Severity::error) {
      CHECK(p.field == "dataset.seq_length");
      CHECK(p.hint.find("1016 or 1024") != std::string::npos);
    }
}

TEST_CASE("a local batch must divide into micro-batches, and the global batch into local ones") {
  const auto flushed = [](int64_t global, int64_t local, int64_t micro) {
    return Overrides{"distributed.pp_size=2", "distributed.pipeline={}",
                     fmt::format("train.global_batch_size={}", global),
                     fmt::format("step_scheduler.local_batch_size={}", local),
                     fmt::format("distributed.pipeline.pp_microbatch_size={}", micro)};
  };
  expect_accepts({.what = "three flushes", .world = 4, .set = flushed(48, 8, 2)});
  expect_error({.what = "local", .world = 4, .set = flushed(48, 8, 3)},
               "distributed.pipeline.pp_microbatch_size", "not a whole number of micro-batches");
  expect_error({.what = "neither", .world = 4, .set = flushed(40, 8, 8)}, "train.global_batch_size",
               "2 x local batch 8 = 16");
  expect_error({.what = "global", .world = 4, .set = flushed(40, 8, 2)}, "train.global_batch_size",
               "2 x local batch 8 = 16");
  expect_warning({.what = "short flush",
                  .world = 8,
                  .set =
                      [&] {
                        Overrides o = flushed(32, 8, 8);
                        o[0] = "distributed.pp_size=4";
                        return o;
                      }()},
                 "train.micro_batch_size", "1 micro-batches a flush");
  // A printed recipe keeps the meaning.
  Diagnostics diagnostics;
  const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml",
                                    flushed(48, 8, 2), diagnostics, 4);
  const auto again = recipe::read_recipe_text(interchange::model_source(), print_recipe(r),
                                              "printed", {}, diagnostics);
  REQUIRE(again);
  REQUIRE(layout_of(*again, 4).flushes == 3);
}

}  // namespace plan_layout_rules_test
