// Tests that one recipe serves every size: a flag without effect at a size gives a warning and a
// row of the overlap table, and with debug.strict an error. No flag is off silently.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "recipe_cases.h"

namespace plan_idle_flags_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

// A layout and the number of ranks that it is for.
struct Size {
  const char* name;
  int64_t world;
  Overrides set;
  bool tp = false, sp = false, cp = false, pp = false, stages = false, dp = false;
};

const std::vector<Size>& sizes() {
  static const std::vector<Size> list{
      {.name = "one rank", .world = 1, .set = {}},
      {.name = "tp", .world = 2, .set = {"distributed.tp_size=2"}, .tp = true},
      {.name = "tp and sp",
       .world = 2,
       .set = {"distributed.tp_size=2", "distributed.sequence_parallel=true"},
       .tp = true,
       .sp = true},
      {.name = "cp", .world = 2, .set = {"distributed.cp_size=2"}, .cp = true},
      {.name = "dp", .world = 2, .set = {}, .dp = true},
      {.name = "pp", .world = 2, .set = {"distributed.pp_size=2"}, .pp = true},
      {.name = "pp with stages",
       .world = 2,
       .set = {"distributed.pp_size=2", "distributed.vpp_size=2"},
       .pp = true,
       .stages = true},
      {.name = "pp with stages, dp",
       .world = 4,
       .set = {"distributed.pp_size=2", "distributed.vpp_size=2"},
       .pp = true,
       .stages = true,
       .dp = true}};
  return list;
}

// A flag, and the sizes at which it has something to hide.
struct Flag {
  const char* field;
  const char* value;
  bool (*works)(const Size&);
};

const Flag kFlags[] = {
    {"comm_overlap.tp_comm_overlap", "true", [](const Size& s) { return s.tp && s.sp; }},
    {"comm_overlap.overlap_p2p_comm", "true", [](const Size& s) { return s.stages; }},
    {"comm_overlap.batch_p2p_comm", "true", [](const Size& s) { return s.pp; }},
    {"ddp.overlap_grad_reduce", "true", [](const Size& s) { return s.dp || s.cp; }},
    {"ddp.overlap_param_gather", "true", [](const Size& s) { return s.dp || s.cp; }},
    {"ddp.align_param_gather", "true", [](const Size& s) { return s.stages && s.dp; }},
    {"ddp.overlap_param_gather_with_optimizer_step", "true",
     [](const Size& s) { return s.stages && s.dp; }},
    {"comm_overlap.cp_overlap", "true", [](const Size& s) { return s.cp; }},
    {"comm_overlap.defer_embedding_wgrad_compute", "true", [](const Size& s) { return s.pp; }},
    {"comm_overlap.overlap_p2p_backward_on_comm_stream", "true",
     [](const Size& s) { return s.stages; }},
    {"comm_overlap.overlap_p2p_with_transformer_layer_wgrad", "true",
     [](const Size& s) { return s.stages; }},
    {"comm_overlap.overlap_p2p_wgrad_delayed_layer_number", "2",
     [](const Size& s) { return s.stages; }},
    {"comm_overlap.overlap_moe_expert_parallel_comm", "true", [](const Size&) { return false; }},
    {"launch.programmatic_dependent_launch", "true", [](const Size&) { return false; }},  // a CPU
    {"mixed_precision.fp8_param_gather", "true", [](const Size&) { return false; }},  // no 8 bits
};

bool mentions(const Diagnostics& diagnostics, Severity severity, std::string_view field) {
  return std::ranges::any_of(diagnostics.sorted(), [&](const auto& d) {
    return d.severity == severity && d.field == field;
  });
}

}  // namespace

TEST_CASE("a flag that a size leaves nothing to do is off with a warning and a row") {
  for (const Size& size : sizes()) {
    for (const Flag& flag : kFlags) {
      Overrides set = size.set;
      set.push_back("distributed.strategy=megatron_ddp");
      set.push_back(fmt::format("{}={}", flag.field, flag.value));
      Diagnostics diagnostics;
      const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml", set,
                                        diagnostics, size.world);
      INFO(size.name << ", " << flag.field << "\n" << listed(diagnostics));
      const bool works = flag.works(size);
      REQUIRE_FALSE(diagnostics.has_errors());
      CHECK(mentions(diagnostics, Severity::warning, flag.field) == !works);
      const Overlap overlap = resolve_overlap(r, layout_of(r, size.world));
      const auto row = std::ranges::find(overlap.table, flag.field, &OverlapRow::field);
      REQUIRE(row != overlap.table.end());
      CHECK(row->asked == flag.value);
      CHECK((row->effective == flag.value) == works);
      CHECK((row->off == OverlapRow::Off::idle) == !works);
      CHECK_FALSE(row->reason.empty());

      set.push_back("debug.strict=true");
      Diagnostics strict;
      load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, strict, size.world);
      CHECK(mentions(strict, Severity::error, flag.field) == !works);
    }
  }
}

TEST_CASE("sections that a size leaves idle are warned of, and refused with debug.strict") {
  struct Case {
    const char* field;
    Overrides set;
  };
  for (const Case& c :
       {Case{"distributed.pipeline", {"distributed.pipeline={pp_schedule: 1f1b}"}},
        Case{"distributed.moe", {"distributed.moe={reshard_after_forward: true}"}},
        Case{"debug.route", {"debug.route=zipf"}},
        Case{"model.moe.token_dispatcher",
             {"model.moe.num_experts=8", "model.moe.token_dispatcher=alltoall"}},
        Case{"distributed.expert_tp_size", {"distributed.expert_tp_size=1"}},
        Case{"distributed.vpp_size", {"distributed.vpp_size=2"}},
        Case{"distributed.sequence_parallel", {"distributed.sequence_parallel=true"}},
        Case{"comm_overlap.tp_comm_overlap_cfg",
             {"comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {aggregate: true}}"}},
        Case{"comm_overlap.wgrad_deferral_limit", {"comm_overlap.wgrad_deferral_limit=2"}}}) {
    expect_warning({.what = c.field, .set = c.set}, c.field, "");
    Overrides strict = c.set;
    strict.push_back("debug.strict=true");
    expect_error({.what = c.field, .set = strict}, c.field, "");
  }
}

TEST_CASE("requests of single GEMMs that cannot act are warned of") {
  const Overrides tp{"distributed.tp_size=2", "distributed.sequence_parallel=true",
                     "comm_overlap.tp_comm_overlap=true"};
  const std::string cfg = "comm_overlap.tp_comm_overlap_cfg";
  const auto with = [&](const std::string& gemms) {
    Overrides set = tp;
    set.push_back(cfg + "={" + gemms + "}");
    return set;
  };
  expect_warning(
      {.what = "aggregate on two ranks", .world = 2, .set = with("qkv_fprop: {aggregate: true}")},
      cfg + ".qkv_fprop.aggregate", "even tp_size above 2");
  expect_no_warning({.what = "a margin", .world = 2, .set = with("fc2_fprop: {num_sm: 4}")});
  expect_warning({.what = "multiprocessors without a margin",
                  .world = 2,
                  .set = with("fc2_fprop: {num_sm: 4, set_sm_margin: false}")},
                 cfg + ".*.num_sm", "set_sm_margin: true");
  expect_warning({.what = "clusters", .world = 2, .set = with("fc2_fprop: {cga_size: 4}")},
                 cfg + ".*.cga_size", "user buffers");
  expect_no_warning({.what = "nothing given", .world = 2, .set = with("qkv_fprop: {}")});
}

TEST_CASE("a tp group that leaves the node is warned of") {
  expect_warning(
      {.what = "tp 3 of 8 GPUs",
       .world = 6,
       .set = {"distributed.tp_size=3", "hardware.gpus_per_node=8", "model.num_attention_heads=12",
               "model.num_query_groups=3", "model.hidden_size=264", "model.ffn_hidden_size=768"}},
      "distributed.tp_size", "does not divide the 8 GPUs");
  expect_no_warning({.what = "tp 4 of 8 GPUs",
                     .world = 4,
                     .set = {"distributed.tp_size=4", "hardware.gpus_per_node=8"}});
}

}  // namespace plan_idle_flags_test
