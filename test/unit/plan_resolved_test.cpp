// Tests what a layout makes of a recipe: its sizes, what `auto` becomes, and the table of overlap.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_resolved_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

namespace {
Overlap overlap_of(int64_t world, const Overrides& overrides, const std::string& more = "") {
  const Recipe r = recipe_of(world, overrides, more);
  return resolve_overlap(r, layout_of(r, world));
}
std::string reason_of(const Overlap& overlap, std::string_view field) {
  const auto row = std::ranges::find(overlap.table, field, &OverlapRow::field);
  REQUIRE(row != overlap.table.end());
  return row->reason;
}
}  // namespace

TEST_CASE("kernels begin early only if asked, on GPUs of compute capability 9 and newer") {
  const std::string field = "launch.programmatic_dependent_launch";
  const auto plan = [&](const std::string& device, const std::string& gpu, bool asked) {
    return make_plan(recipe_of(1, {"train.device=" + device, "hardware.gpu=" + gpu,
                                   field + (asked ? "=true" : "=false")}),
                     1, 512);
  };
  CHECK_FALSE(plan("cuda", "h100", false).device.dependent_launch);
  CHECK_FALSE(plan("cpu", "h100", true).device.dependent_launch);
  for (const char* gpu : {"h100", "b200"}) CHECK(plan("cuda", gpu, true).device.dependent_launch);
  const RunPlan old = plan("cuda", "a100", true);
  CHECK_FALSE(old.device.dependent_launch);
  CHECK_THAT(reason_of(old.overlap, field), Contains("a100 has 8"));
}

TEST_CASE("auto is resolved by the layout") {
  const Overrides mddp{"distributed.strategy=megatron_ddp"};
  const Overlap one = overlap_of(1, mddp);
  REQUIRE_FALSE(one.overlap_grad_reduce);
  REQUIRE_FALSE(one.cp_overlap);
  const Overlap two = overlap_of(2, mddp);
  REQUIRE(two.overlap_grad_reduce);
  REQUIRE(two.overlap_param_gather);
  REQUIRE_FALSE(two.align_param_gather);
  REQUIRE(two.bucket_size == 40000000);
  REQUIRE(two.layernorm_sm_margin == 16);
  REQUIRE(two.gemm_sm_margin == 0);
  REQUIRE(overlap_of(2, {mddp[0], "launch.gemm_sm_margin=8"}).gemm_sm_margin == 8);
  REQUIRE(overlap_of(64, {mddp[0], "train.global_batch_size=64"}).bucket_size == 64000000);
  REQUIRE(overlap_of(2, mddp, "comm_overlap: {}\n").bucket_size == 134217728);
  REQUIRE(overlap_of(2, {mddp[0], "ddp.bucket_size=5"}).bucket_size == 5);
  REQUIRE_FALSE(
      overlap_of(2, {mddp[0], "ddp.use_distributed_optimizer=false"}).overlap_param_gather);
  REQUIRE(overlap_of(2, {}).overlap_grad_reduce);
  REQUIRE(overlap_of(2, {}).bucket_size == 1 << 20);  // of fsdp2

  const Overlap several = overlap_of(4, interleaved({}));
  REQUIRE(several.overlap_p2p_comm);
  REQUIRE_FALSE(several.batch_p2p_comm);
  const Overlap single = overlap_of(4, pipeline({}));
  REQUIRE_FALSE(single.overlap_p2p_comm);
  REQUIRE(single.batch_p2p_comm);
  REQUIRE(overlap_of(4, interleaved({"model.batch_p2p_comm=true"})).batch_p2p_comm);
  REQUIRE(overlap_of(4, interleaved({"model.overlap_p2p_comm=false"})).batch_p2p_comm);
  REQUIRE_FALSE(several.fine_grained_1f1b);
  REQUIRE(overlap_of(4, interleaved({"model.fine_grained_1f1b=true"})).fine_grained_1f1b);
  REQUIRE(overlap_of(4, fine("backward_on_comm_stream=true")).fine_grained_1f1b);
  REQUIRE(overlap_of(4, fine("with_transformer_layer_wgrad=true")).fine_grained_1f1b);
  const auto context = [&](const Overrides& more) {
    Overrides o{"distributed.cp_size=2", "model.num_query_groups=2"};
    o.insert(o.end(), more.begin(), more.end());
    return overlap_of(2, o);
  };
  REQUIRE(context({}).cp_overlap);
  REQUIRE(context({"model.cp_comm_type=all_gather"}).cp_overlap);
  REQUIRE_FALSE(context({"model.cp_comm_type=a2a"}).cp_overlap);  // a kv head for each rank
  REQUIRE_THAT(reason_of(context({"model.cp_comm_type=a2a"}), "comm_overlap.cp_overlap"),
               Contains("one kv head"));
  const Overlap both = context({"model.num_query_groups=4", "model.cp_comm_type=a2a"});
  REQUIRE(both.cp_overlap);
  REQUIRE_THAT(reason_of(both, "comm_overlap.cp_overlap"),
               Contains("the first and the last are waited for"));

  const Overrides tp{"distributed.tp_size=2", mddp[0]};
  REQUIRE_FALSE(
      overlap_of(2, {tp[0], mddp[0], "distributed.sequence_parallel=true"}).tp_comm_overlap);
  REQUIRE(overlap_of(2, tp).cuda_device_max_connections == 1);
  REQUIRE(overlap_of(2, {tp[0], mddp[0], "hardware.gpu=b200"}).cuda_device_max_connections == 32);
  REQUIRE(overlap_of(2, {tp[0]}).cuda_device_max_connections == 32);
  REQUIRE(overlap_of(2, mddp).cuda_device_max_connections == 32);
  REQUIRE_THAT(reason_of(two, "ddp.bucket_size"), Contains("one bucket"));
}

TEST_CASE("a layout follows from the sizes that the recipe gives") {
  const auto layout = [](int64_t world, const Overrides& o) {
    return layout_of(recipe_of(world, o), world);
  };
  Layout l = layout(
      32, {"distributed.tp_size=2", "distributed.cp_size=2", "distributed.dp_replicate_size=2"});
  REQUIRE(l.dp == 8);
  REQUIRE(l.dp_shard == 4);
  REQUIRE(l.gradient_ranks() == 16);
  REQUIRE(l.micro_batches == 4);
  l = layout(4, pipeline({"model.num_layers=10"}));
  REQUIRE(l.layers_of_stage == std::vector<int64_t>{3, 3, 2, 2});
  REQUIRE(layout(4, interleaved({})).stages == 8);
  REQUIRE(layout(4, pipeline({"distributed.pipeline.layers_per_stage=2"})).stages_per_rank == 1);
  l = layout(2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=dfs",
                 "distributed.pipeline.layers_per_stage=3",
                 "distributed.pipeline.round_virtual_stages_to_pp_multiple=up"});
  REQUIRE(l.stages == 4);
  l = layout(4, pipeline({"distributed.pipeline.layout='Et|t*3|t*3,|tL'"}));
  REQUIRE(l.layers_of_stage == std::vector<int64_t>{1, 3, 3, 1});
  // No stage has layers if the ranks cannot share the stages of a layout evenly.
  Recipe uneven = recipe_of(4, pipeline({"model.mtp_num_layers=1"}));
  for (const char* stages : {"Et*8mL", "Et*3|t*3|t*2mL", "Et|t|t|t|t|t*3mL"}) {
    uneven.distributed.pipeline.layout = stages;
    REQUIRE(layout_of(uneven, 4).layers_of_stage.empty());
  }
  // The layers of multi-token prediction stand with the head.
  l = layout(4, pipeline({"model.num_layers=10", "model.mtp_num_layers=3"}));
  REQUIRE(l.layers_of_stage == std::vector<int64_t>{3, 3, 2, 5});
  l = layout(4, pipeline({"model.num_layers=10", "model.mtp_num_layers=3",
                          "model.mtp_use_repeated_layer=true"}));
  REQUIRE(l.layers_of_stage == std::vector<int64_t>{3, 3, 2, 3});
  REQUIRE(layout_of(recipe_of(8, {"distributed.tp_size=2", "distributed.dp_size=4"}), 0).world ==
          8);
  const Overrides flushes{"distributed.pp_size=2", "distributed.pipeline={}",
                          "distributed.pipeline.pp_microbatch_size=2",
                          "train.global_batch_size=48"};
  const auto local = [&](const char* name) {
    Overrides o = flushes;
    o.push_back(std::string(name) + "=8");
    return layout(4, o);
  };
  l = local("step_scheduler.local_batch_size");
  REQUIRE((l.flushes == 3 && l.micro_batches == 4 && l.step_micro_batches() == 12));
  l = local("train.micro_batch_size");
  REQUIRE((l.flushes == 1 && l.micro_batches == 12));
  REQUIRE(padded_vocab(50257, 1) == 50304);
  REQUIRE(padded_vocab(50257, 8) == 51200);
  REQUIRE(layout(4, experts({})).ep_shard == 1);
}

namespace {

// Returns the row of a GEMM of the tp_comm_overlap_cfg on four ranks: asked | effective | reason.
std::string gemm_row(const Overrides& more, const std::string& name) {
  Overrides o{"distributed.tp_size=4", "distributed.sequence_parallel=true",
              "comm_overlap.tp_comm_overlap=true"};
  o.insert(o.end(), more.begin(), more.end());
  const Recipe r = recipe_of(4, o);
  const Overlap overlap = resolve_overlap(r, layout_of(r, 4));
  for (const OverlapRow& found : overlap.table)
    if (found.field == "comm_overlap.tp_comm_overlap_cfg." + name) {
      return found.asked + " | " + found.effective + " | " + found.reason;
    }
  return std::string("no row");
}

}  // namespace

TEST_CASE("the table tells each GEMM's method, or why it has none") {
  const auto row = gemm_row;
  const auto cfg = [](const std::string& gemms) {
    return Overrides{"comm_overlap.tp_comm_overlap_cfg={" + gemms + "}"};
  };
  CHECK(row({}, "qkv_fprop") == "auto | ring_exchange | 4 chunks of 256 rows");
  CHECK(row({}, "proj_fprop") == "auto | pipeline x4 | 4 chunks of 256 rows");
  CHECK_THAT(row({}, "fc1_dgrad"), Contains("auto | bulk") && Contains("gather"));
  CHECK_THAT(row({}, "fc1_wgrad"), Contains("auto | bulk") && Contains("scatter"));
  CHECK(row({"comm_overlap.tp_comm_overlap=false"}, "fc1_wgrad") == "no row");
  // Routed experts have no chunks of rows: only attention, dense MLPs and shared experts overlap.
  const Overrides experts{"model.moe=8", "model.moe.ffn_hidden_size=64"};
  const auto and_more = [&](const char* more) {
    Overrides o = experts;
    o.push_back(more);
    return o;
  };
  CHECK(row(experts, "qkv_fprop") == "auto | ring_exchange | 4 chunks of 256 rows");
  CHECK_THAT(row(experts, "fc1_fprop"), Contains("auto | none | routed experts have no chunks"));
  CHECK(row(and_more("model.moe.first_dense_layers=1"), "fc1_fprop") == row({}, "fc1_fprop"));
  CHECK(row(and_more("model.moe.shared_expert_ffn_hidden_size=64"), "fc1_fprop") ==
        row({}, "fc1_fprop"));
  for (const auto& [field, name] : {std::pair{"tp_comm_bulk_wgrad", "qkv_wgrad"},
                                    {"tp_comm_bulk_dgrad", "fc1_dgrad"},
                                    {"tp_comm_overlap_ag", "fc2_dgrad"},
                                    {"tp_comm_overlap_rs", "fc2_fprop"}})
    CHECK(row({fmt::format("comm_overlap.{}=false", field)}, name) ==
          fmt::format("auto | none | comm_overlap.{} is false", field));
  const Overrides bubbles{"distributed.pp_size=2", "distributed.tp_size=2",
                          "distributed.pipeline.pp_schedule=zero_bubble"};
  CHECK_THAT(row(bubbles, "fc1_wgrad"),
             Contains("auto | none | the schedule delays weight gradients"));
  // Too short to be split, unless asked for by name.
  const Overrides shorter{"dataset.seq_length=128"};
  CHECK_THAT(row(shorter, "qkv_fprop"), Contains("auto | none | 128 rows make 4 chunks of 32"));
  CHECK(row(shorter, "proj_fprop") == "auto | pipeline x2 | 2 chunks of 64 rows");
  CHECK_THAT(row({"dataset.seq_length=64"}, "proj_fprop"), Contains("none | 64 rows"));
  Overrides asked = cfg("qkv_fprop: {}, fc2_fprop: none");
  asked.push_back(shorter[0]);
  CHECK_THAT(row(asked, "qkv_fprop"), Contains("ring_exchange | ring_exchange") &&
                                          Contains("chunks of 32 rows; fewer than 64"));
  CHECK(row(asked, "fc2_fprop") == "none | none | switched off");
  const auto ring = cfg("qkv_dgrad: {method: ring_exchange}, fc1_fprop: {aggregate: true}");
  CHECK_THAT(row(ring, "qkv_dgrad"), Contains("ring_exchange | ring_exchange"));
  CHECK_THAT(row(ring, "qkv_wgrad"), Contains("none") && Contains("scatters its own result"));
  CHECK_THAT(row(ring, "fc1_fprop"), Contains("two at a time"));
  CHECK_THAT(row(cfg("fc2_fprop: {method: ring_exchange, aggregate: true}"), "fc2_fprop.aggregate"),
             Contains("true | false | it is for a ring that gathers"));
  // A setting of user buffers, which mtrain does not have, is reported if the recipe gives it.
  CHECK_THAT(row(cfg("fc2_fprop: {cga_size: 4}"), "*.cga_size"),
             Contains("given | none | it acts on user buffers"));
  CHECK(row(ring, "*.cga_size") == "no row");
  const Overrides margin = cfg("fc2_fprop: {num_sm: 4}");
  CHECK_THAT(row(margin, "fc2_fprop"), Contains("; leaves 4 multiprocessors of a GPU"));
  CHECK(row(margin, "*.num_sm") == "no row");
  CHECK_THAT(row(cfg("fc2_fprop: {num_sm: 4, set_sm_margin: false}"), "*.num_sm"),
             Contains("given | none | a GEMM leaves num_sm"));
  CHECK(row(ring, "*.num_sm") == "no row");
  CHECK(row({}, "*.num_sm") == "no row");
  CHECK_THAT(row({"comm_overlap.tp_comm_overlap_cfg="
                  "userbuffers_fp8_h100_h16384_tp4_mbs1_seqlen2048_lora"},
                 "proj_fprop"),
             Contains("without fp8_buf"));
}

TEST_CASE("a ring is off if 8-bit GEMMs cannot have its chunks") {
  // The ring would multiply chunks of 514 of 4 x 514 tokens. A pipeline divides them by fours.
  const Overrides fours{
      "dataset.seq_length=2056",    "train.device=cuda",
      "hardware.gpu=h100",          "mixed_precision={fp8: hybrid, fp8_recipe: blockwise}",
      "model.ffn_hidden_size=1024", "model.kv_channels=64",
      "model.num_query_groups=8"};
  CHECK(gemm_row(fours, "qkv_fprop") ==
        "auto | none | fp8_recipe blockwise needs chunks of a multiple of 4 tokens, not 514");
  CHECK_THAT(gemm_row(fours, "fc2_fprop"), Contains("auto | pipeline x4"));
  CHECK_THAT(gemm_row(fours, "fc1_dgrad"), Contains("auto | bulk"));
  // Two chunks at once have 2 x 514 tokens, which are a multiple of 4.
  Overrides at_once = fours;
  at_once.push_back(
      "comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {method: ring_exchange, aggregate: true}}");
  CHECK_THAT(gemm_row(at_once, "qkv_fprop"),
             StartsWith("ring_exchange | ring_exchange") && EndsWith(", two at a time"));
}

TEST_CASE("only blockwise GEMMs on a GPU need a multiple of four rows") {
  // Each rank has 12 rows. In fours they make three chunks.
  struct Case {
    std::string device, recipe;
    int64_t multiple;
    std::string chunks;
  };
  for (const Case& c :
       {Case{"cuda", "blockwise", 4, "pipeline x3"}, Case{"cuda", "tensorwise", 1, "pipeline x4"},
        Case{"cuda", "delayed", 1, "pipeline x4"}, Case{"cpu", "blockwise", 1, "pipeline x4"}}) {
    CAPTURE(c.device, c.recipe);
    const Overrides set{
        "dataset.seq_length=48",
        "train.device=" + c.device,
        "hardware.gpu=h100",
        "mixed_precision={fp8: hybrid, fp8_recipe: " + c.recipe + "}",
        fmt::format("debug.emulate_fp8={}", c.device == "cpu"),
        "model.ffn_hidden_size=1024",
        "model.kv_channels=64",
        "model.num_query_groups=8",
        "distributed.tp_size=4",
        "distributed.sequence_parallel=true",
        "comm_overlap.tp_comm_overlap=true",
        "comm_overlap.tp_comm_overlap_cfg={fc2_fprop: {method: pipeline, num_splits: 4}}"};
    CHECK(make_plan(recipe_of(4, set), 4, 512).fp8.rows_multiple == c.multiple);
    CHECK_THAT(gemm_row(set, "fc2_fprop"), StartsWith("pipeline x4 | " + c.chunks));
  }
}

TEST_CASE("the table shows for each GEMM the method that tensor parallelism gets") {
  using Method = GemmOverlap::Method;
  const auto gemms = [](const std::string& cfg) {
    const Recipe r = recipe_of(
        4, {"distributed.tp_size=4", "distributed.sequence_parallel=true",
            "comm_overlap.tp_comm_overlap=true", "comm_overlap.tp_comm_overlap_cfg={" + cfg + "}"});
    return resolve_overlap(r, layout_of(r, 4)).tp_gemm_overlap;
  };
  const TpGemmOverlap o = gemms("fc1_dgrad: none, fc2_fprop: {num_splits: 3}");
  struct Row {
    LayerGemm gemm;
    Pass pass;
    Method method;
  };
  for (const Row& row : {Row{LayerGemm::qkv, Pass::fprop, Method::ring_exchange},
                         {LayerGemm::qkv, Pass::dgrad, Method::bulk},
                         {LayerGemm::qkv, Pass::wgrad, Method::bulk},
                         {LayerGemm::proj, Pass::fprop, Method::pipeline},
                         {LayerGemm::proj, Pass::dgrad, Method::ring_exchange},
                         {LayerGemm::proj, Pass::wgrad, Method::none},
                         {LayerGemm::fc1, Pass::fprop, Method::ring_exchange},
                         {LayerGemm::fc1, Pass::dgrad, Method::none},
                         {LayerGemm::fc1, Pass::wgrad, Method::bulk},
                         {LayerGemm::fc2, Pass::fprop, Method::pipeline},
                         {LayerGemm::fc2, Pass::dgrad, Method::ring_exchange},
                         {LayerGemm::fc2, Pass::wgrad, Method::none}}) {
    CAPTURE(int(row.gemm), int(row.pass));
    CHECK(o.at(row.gemm, row.pass).method == row.method);
  }
  CHECK(o.at(LayerGemm::fc2, Pass::fprop).splits == 3);
  CHECK(o.at(LayerGemm::fc2, Pass::fprop).sm_margin == 0);
  const TpGemmOverlap margins = gemms(
      "fc2_fprop: {num_sm: 5}, fc1_fprop: {set_sm_margin: false}, qkv_wgrad: {set_sm_margin: "
      "true}");
  CHECK(margins.at(LayerGemm::fc2, Pass::fprop).sm_margin == 5);
  CHECK(margins.at(LayerGemm::fc1, Pass::fprop).sm_margin == 0);
  CHECK(margins.at(LayerGemm::qkv, Pass::wgrad).sm_margin == 16);
  CHECK(gemms("qkv_fprop: {aggregate: true}").at(LayerGemm::qkv, Pass::fprop).aggregate);
}

TEST_CASE("a printed layout loads again") {
  for (const auto& o :
       {pipeline({}), experts({}), Overrides{"ddp.overlap_grad_reduce=true"},
        Overrides{"distributed.strategy=mfsdp"}, Overrides{"distributed.strategy=ddp"},
        Overrides{"model.tp_comm_overlap_cfg={fc2_fprop: {num_splits: 2}, qkv_fprop: none}"}}) {
    const Recipe r = recipe_of(4, o);
    Diagnostics diagnostics;
    const Recipe again = load_recipe_text(interchange::model_source(), print_recipe(r), "printed",
                                          {}, diagnostics, 4);
    INFO(print_recipe(r) << diagnostics.text(recipe::Severity::error));
    REQUIRE_FALSE(diagnostics.has_errors());
    REQUIRE(print_recipe(again, false) == print_recipe(r, false));
  }
}

}  // namespace plan_resolved_test
