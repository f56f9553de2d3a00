// Tests the plan's report about pairs of passes and about the compute that hides the exchanges of
// experts.
#include <chrono>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"
#include "recipe_cases.h"

namespace plan_expert_overlap_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

const std::string kPairs = "comm_overlap.overlap_moe_expert_parallel_comm";

RunPlan planned(int64_t world, const Overrides& set) {
  Diagnostics diagnostics;
  const Recipe r =
      load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, diagnostics, world);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return make_plan(r, world, 512);
}

std::string reason(const RunPlan& plan, std::string_view field) {
  const auto row = std::ranges::find(plan.overlap.table, field, &OverlapRow::field);
  REQUIRE(row != plan.overlap.table.end());
  return row->reason;
}

}  // namespace

TEST_CASE("sizes that no list could hold are refused at once, as without pairs") {
  const auto begun = std::chrono::steady_clock::now();
  const std::string batch = "train.global_batch_size=1073741824",
                    v = "distributed.pipeline.pp_schedule=dualpipev";
  for (const std::string& pairs : {kPairs + "=false", kPairs + "=true"}) {
    expect_accepts({.what = "dense", .set = {batch, pairs}});
    for (const Overrides& more : {Overrides{batch, pairs}, Overrides{batch, pairs, v}})
      expect_error({.what = "long lists", .world = 4, .set = interleaved(more)},
                   "train.global_batch_size", "passes in a step");
    expect_error({.what = "experts", .world = 16, .set = interleaved(experts({batch, pairs}))},
                 "train.global_batch_size", "passes in a step");
    expect_error(
        {.what = "stages", .world = 4, .set = interleaved({"distributed.vpp_size=65536", pairs})},
        "model.num_layers", "fewer than the 262144 stages");
  }
  Diagnostics diagnostics;
  const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml",
                                    interleaved({batch}), diagnostics, 4);
  CHECK_THROWS_WITH(make_plan(r, 4, 512), Contains("too many to list"));
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
}

TEST_CASE("a recipe whose passes do not pair gets the reason and a remedy") {
  const auto diagnostics_of = [](int64_t world, const Overrides& set) {
    return Setting{.what = set.back(), .world = world, .set = set};
  };
  expect_warning(diagnostics_of(1, {kPairs + "=true"}), kPairs, "the model has no experts");
  const std::string on = kPairs + "=true", batch = "train.global_batch_size=4",
                    raise = "raise global_batch_size", chunks = "moe_dispatch_chunks";
  expect_warning(diagnostics_of(4, experts({on, batch})), kPairs,
                 raise + ", or set comm_overlap." + chunks);
  const auto without_chunks = [&](const Overrides& more) {
    Overrides set = experts({on, batch});
    set.insert(set.end(), more.begin(), more.end());
    expect_warning(diagnostics_of(4, set), kPairs, raise);
    const Diagnostics diagnostics = check(4, set);
    for (const auto& d : diagnostics.sorted())
      if (d.field == kPairs) CHECK_THAT(d.reason, !Contains(chunks));
  };
  without_chunks({"model.moe.token_dispatcher=flex"});
  without_chunks({"model.moe.num_experts=4"});  // one expert for each rank
  without_chunks({"comm_overlap.moe_dispatch_chunks=2"});
  without_chunks({"mixed_precision={name: bf16_mixed, fp8: hybrid}", "debug.emulate_fp8=true",
                  "model.ffn_hidden_size=768"});
}

TEST_CASE("the table lists the waits of passes that run alone beside pairs") {
  const auto text = [](const Overrides& more) {
    Overrides set = experts({kPairs + "=true"});
    set.insert(set.end(), more.begin(), more.end());
    return reason(planned(4, set), "model.moe.token_dispatcher");
  };
  const std::string shared = "model.moe.shared_expert_ffn_hidden_size=64",
                    two = "comm_overlap.moe_dispatch_chunks=2";
  CHECK_THAT(text({}), Contains("micro-batch; in a pass that runs alone their way back in backward "
                                "hides behind weight gradients of the experts, and all else"));
  CHECK_THAT(text({shared}), Contains("in a pass that runs alone their way back hides behind the "
                                      "shared expert's forward, and in backward behind weight"));
  CHECK_THAT(text({two}), Contains("in a pass that runs alone all but the first chunk"));
  CHECK_THAT(text({shared, two}), Contains("last one's way back behind the shared expert"));
}

TEST_CASE("weight gradients that wait for a send are reported and planned") {
  const std::string whole = "comm_overlap.overlap_p2p_with_transformer_layer_wgrad",
                    layers = "comm_overlap.overlap_p2p_wgrad_delayed_layer_number=";
  const auto plan = [&](const Overrides& more) {
    Overrides set =
        interleaved({"model.num_layers=16", "comm_overlap.fine_grained_1f1b=true",
                     "mixed_precision=bf16_mixed", "distributed.strategy=megatron_ddp"});
    set.insert(set.end(), more.begin(), more.end());
    return planned(8, set);
  };
  const Overrides experts_set{"model.moe.num_experts=8", "model.moe.router_topk=2",
                              "distributed.ep_size=2"};
  const auto with = [&](Overrides more) {
    more.insert(more.end(), experts_set.begin(), experts_set.end());
    return plan(more);
  };
  // K (2 H + 3 F) of 2 bytes for each of 1024 tokens.
  const double row = 2 * (2 * 256 + 3 * 704) * 2.0 * 1024;
  CHECK_THAT(reason(with({whole + "=true"}), whole),
             Contains("2 (2 x 256 + 3 x 704) elements for each token") &&
                 Contains(human_bytes(row) + " for a micro-batch"));
  CHECK_THAT(reason(plan({whole + "=true"}), whole), !Contains("experts"));
  // A chunk has 2 layers. If the weight gradients of both wait, their rows are kept beside the
  // forward's two layers.
  const auto activations = [&](const RunPlan& p) { return p.memory[1].activations; };
  const Count none = activations(with({})),
              both = activations(with({layers + "2", whole + "=true"}));
  CHECK(both > none);
  CHECK(both - none < 2 * row);
  CHECK(activations(with({layers + "2"})) <= both);
  CHECK(activations(plan({layers + "2", whole + "=true"})) >= activations(plan({})));
}

TEST_CASE("units of two passes are gathered wherever the list pairs passes") {
  const auto pairs = [](const char* schedule, const Overrides& more) {
    Overrides set = interleaved({std::string("distributed.pipeline.pp_schedule=") + schedule});
    set.insert(set.end(), more.begin(), more.end());
    return planned(8, set).data_parallel.gather.passes_pair;
  };
  CHECK(pairs("dualpipev", {}));
  CHECK_FALSE(pairs("interleaved_1f1b", {}));
  CHECK(pairs("interleaved_1f1b", {"comm_overlap.fine_grained_1f1b=true"}));
  CHECK_FALSE(planned(4, experts({})).data_parallel.gather.passes_pair);
  CHECK(planned(4, experts({kPairs + "=true"})).data_parallel.gather.passes_pair);
}

}  // namespace plan_expert_overlap_test
