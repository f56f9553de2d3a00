// Tests settings of experts: which layers have them, how a router's settings determine each other,
// and which settings are refused or change nothing.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/expert_traffic.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_expert_rules_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

Overrides moe(const Overrides& more) {
  Overrides o{"model.moe=8"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}

// The plan of the small recipe with 8 experts, which must load without an error.
RunPlan plan_of(const Overrides& more) {
  Diagnostics diagnostics;
  const Recipe r =
      load_recipe_text(interchange::model_source(), kBase, "base.yaml", moe(more), diagnostics, 1);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return make_plan(r, 1, 512);
}
spec::Experts layer_experts(const Overrides& more) { return *plan_of(more).model.experts(); }

// One digit for each layer: whether it has experts.
std::string layers(const Overrides& more) {
  std::string text;
  for (const spec::LayerSpec& layer : plan_of(more).model.layers)
    text += layer.experts() ? '1' : '0';
  return text;
}

}  // namespace

TEST_CASE("Megatron's and Hugging Face's settings say which layers have experts") {
  CHECK(layers({}) == "11111111");
  CHECK(layers({"model.moe_layer_freq=2"}) == "10101010");
  CHECK(layers({"model.moe_layer_freq=3"}) == "10010010");
  CHECK(layers({"model.moe_layer_freq=[0,1,1,0,1,1,1,1]"}) == "01101111");
  CHECK(layers({"model.first_k_dense_replace=1"}) == "01111111");
  CHECK(layers({"model.first_k_dense_replace=1", "model.moe_layer_freq=2"}) == "00101010");
  CHECK(layers({"model.decoder_sparse_step=1"}) == "11111111");
  CHECK(layers({"model.decoder_sparse_step=2"}) == "01010101");
  CHECK(layers({"model.decoder_sparse_step=2", "model.mlp_only_layers=[3]"}) == "01000101");
  CHECK(layers({"model.mlp_only_layers=[0,7]"}) == "01111110");
  CHECK(layers({"model.mlp_only_layers=[]"}) == "11111111");
}

TEST_CASE("settings of experts win over those of a family or another system") {
  // DeepSeekMoE uses the weights of a softmax unchanged; sigmoids are scaled to a sum of 1.
  CHECK_FALSE(layer_experts({"model.architecture=deepseek_moe"}).form.normalize);
  CHECK(layer_experts({"model.architecture=deepseek_moe", "model.moe.router_score=sigmoid"})
            .form.normalize);
  CHECK_FALSE(layer_experts({"model.architecture=deepseek_moe", "model.moe.router_score=sigmoid",
                             "model.moe.norm_topk_prob=false"})
                  .form.normalize);
  // A list replaces the family's first dense layer.
  CHECK(layers({"model.architecture=deepseek_moe"}) == "01111111");
  CHECK(layers({"model.architecture=deepseek_moe", "model.moe.layer_freq=[1,1,0,0,1,1,1,1]"}) ==
        "11001111");
  // Megatron's type is aux_loss by default; mtrain's own coefficient does not imply a type.
  CHECK(layer_experts({"model.moe_aux_loss_coeff=0.01"}).loss_coeffs.batch == 0.01f);
  CHECK(layer_experts({"model.moe.aux_loss_coeff=0.01"}).loss_coeffs.batch == 0);
  CHECK(
      layer_experts({"model.moe_aux_loss_coeff=0.01", "model.moe_router_load_balancing_type=none"})
          .loss_coeffs.batch == 0);
}

TEST_CASE("layouts of experts that no rank could run are refused") {
  const Overrides packed{"packed_sequence.packed_sequence_size=64", "distributed.cp_size=2",
                         "distributed.strategy=megatron_ddp"};
  const auto over = [&](const char* ep, const char* dispatcher) {
    Overrides o = packed;
    o.push_back(std::string("distributed.ep_size=") + ep);
    o.push_back(std::string("model.moe.token_dispatcher=") + dispatcher);
    return moe(o);
  };
  expect_error({.what = "unequal tokens", .world = 8, .set = over("4", "all_gather")},
               "model.moe.token_dispatcher", "have different numbers");
  expect_accepts({.what = "one sample's ranks", .world = 8, .set = over("2", "all_gather")});
  expect_accepts({.what = "counts travel", .world = 8, .set = over("4", "alltoall")});
  expect_accepts({.what = "counts travel", .world = 8, .set = over("4", "flex")});

  const char* padding = "model.moe.pad_expert_input_to_capacity";
  const auto padded = [&](const char* ep, const char* dispatcher) {
    Overrides o = over(ep, dispatcher);
    o.push_back("model.moe.expert_capacity_factor=1.5");
    o.push_back(std::string(padding) + "=true");
    return o;
  };
  expect_error({.what = "unequal tokens", .world = 8, .set = padded("4", "alltoall")}, padding,
               "have different numbers");
  for (const char* dispatcher : {"alltoall", "all_gather"})
    expect_accepts({.what = dispatcher, .world = 8, .set = padded("2", dispatcher)});
  expect_error({.what = "tokens of a rank", .world = 8, .set = padded("2", "flex")}, padding,
               "does not follow from the capacity");
}

TEST_CASE("the plan knows how many ranks a token goes to, and how many rows experts have") {
  const auto plan = [](int ranks, const Overrides& more) {
    Diagnostics diagnostics;
    Overrides o{"distributed.strategy=megatron_ddp", fmt::format("distributed.ep_size={}", ranks)};
    o.insert(o.end(), more.begin(), more.end());
    const Recipe r =
        load_recipe_text(interchange::model_source(), kBase, "base.yaml", o, diagnostics, ranks);
    INFO(listed(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    return make_plan(r, ranks, 512);
  };
  const Overrides flex{"model.moe=256", "model.moe.router_topk=8",
                       "model.moe.token_dispatcher=flex"};
  CHECK(expert_ranks_per_token(plan(8, flex)) == Approx(5.3).margin(0.01));
  CHECK(expert_ranks_per_token(plan(2, {"model.moe=8", "model.moe.router_topk=1",
                                        "model.moe.router_pre_softmax=true"})) == Approx(1));
  // If a token has five of eight experts, both of two ranks have one of them.
  CHECK(expert_ranks_per_token(plan(2, {"model.moe=8", "model.moe.router_topk=5"})) == Approx(2));
  CHECK(expert_rows_per_token(plan(8, flex)) == 8);
  CHECK(expert_rows_per_token(plan(2, {"model.moe=8", "model.moe.expert_capacity_factor=1.5",
                                       "model.moe.pad_expert_input_to_capacity=true"})) ==
        Approx(3));
}

TEST_CASE("experts are divided over tp, or whole on its ranks under sequence parallelism") {
  const auto over_tp = [](const Overrides& more) {
    Overrides o{"distributed.tp_size=4", "model.moe.ffn_hidden_size=64"};
    o.insert(o.end(), more.begin(), more.end());
    return moe(o);
  };
  const char *sequence = "distributed.sequence_parallel=true",
             *whole = "distributed.expert_tp_size=1";
  expect_accepts({.what = "divided", .world = 4, .set = over_tp({})});
  expect_accepts({.what = "own tokens", .world = 4, .set = over_tp({sequence})});
  expect_accepts({.what = "whole", .world = 4, .set = over_tp({sequence, whole})});
  expect_accepts(
      {.what = "over tp", .world = 4, .set = over_tp({sequence, whole, "distributed.ep_size=4"})});
  expect_error({.what = "the same tokens", .world = 4, .set = over_tp({whole})},
               "distributed.expert_tp_size", "tokens that are divided over tp");
  expect_error({.what = "half", .world = 4, .set = over_tp({"distributed.expert_tp_size=2"})},
               "distributed.expert_tp_size", "or not at all, not over 2");
  expect_error({.what = "ep over tp", .world = 4, .set = over_tp({"distributed.ep_size=4"})},
               "distributed.ep_size", "does not divide dp(1) * cp(1) = 1");
  expect_error({.what = "more than there are",
                .world = 4,
                .set = over_tp({sequence, whole, "distributed.ep_size=8"})},
               "distributed.ep_size", "dp(1) * cp(1) * tp(4) = 4");
  expect_error({.what = "width", .world = 4, .set = over_tp({"model.moe.ffn_hidden_size=30"})},
               "distributed.tp_size", "does not divide the experts' width of 30");
  expect_accepts({.what = "any width",
                  .world = 4,
                  .set = over_tp({"model.moe.ffn_hidden_size=30", sequence, whole})});
  expect_error({.what = "the shared expert's width",
                .world = 4,
                .set = over_tp({sequence, whole, "model.moe.shared_expert_ffn_hidden_size=30"})},
               "distributed.tp_size", "does not divide the experts' width of 30");
}

TEST_CASE("layers with experts that cannot be are refused") {
  expect_error({.what = "length", .set = moe({"model.moe.layer_freq=[0,1]"})},
               "model.moe.layer_freq", "a list of 2 for 8 layers");
  expect_error({.what = "twos", .set = moe({"model.moe.layer_freq=[0,1,2,1,1,1,1,1]"})},
               "model.moe.layer_freq", "a list has a 0");
  expect_error({.what = "never", .set = moe({"model.moe.layer_freq=0"})}, "model.moe.layer_freq",
               "is 0");
  expect_error({.what = "no layer", .set = moe({"model.moe.first_dense_layers=8"})},
               "model.moe.num_experts", "none of the 8 layers");
  expect_error(
      {.what = "no layer in a list", .set = moe({"model.moe.layer_freq=[0,0,0,0,0,0,0,0]"})},
      "model.moe.num_experts", "none of the 8 layers");
  expect_error({.what = "no such layer", .set = moe({"model.moe.dense_layers=[8]"})},
               "model.moe.dense_layers", "no layer 8");
  expect_error(
      {.what = "two steps", .set = moe({"model.moe.layer_freq=2", "model.moe.sparse_step=3"})},
      "model.moe.layer_freq", "both say");
  for (const char* architecture :
       {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_moe", "dots1", "glm4_moe"})
    expect_error({.what = architecture, .set = {std::string("model.architecture=") + architecture}},
                 "model.moe.num_experts", "their number is not given");
}

TEST_CASE("router_pre_softmax and norm_topk_prob each decide the other, as in their systems") {
  struct Case {
    const char* what;
    Overrides set;
    bool over_chosen, normalize;
  };
  const char *pre = "model.moe_router_pre_softmax=", *norm = "model.norm_topk_prob=";
  const auto yes = [](const char* name) { return std::string(name) + "true"; };
  const auto no = [](const char* name) { return std::string(name) + "false"; };
  for (const Case& c : std::vector<Case>{
           {"Mixtral", {}, true, true},
           {"Megatron's", {yes(pre)}, false, false},
           {"Megatron's default", {no(pre)}, true, true},
           {"Hugging Face's Qwen2-MoE", {no(norm)}, false, false},
           {"Hugging Face's Qwen3-MoE", {yes(norm)}, true, true},
           {"both", {yes(pre), yes(norm)}, false, true},
           {"weights as they are", {yes(pre), no(norm)}, false, false},
           {"the family's", {"model.architecture=qwen2_moe"}, false, false},
           {"the family's, normalized", {"model.architecture=qwen2_moe", yes(norm)}, false, true},
           {"the family's, after the choice",
            {"model.architecture=qwen2_moe", no(pre)},
            true,
            true},
           {"a sigmoid", {"model.moe.router_score=sigmoid"}, false, true},
           {"a sigmoid as it is", {"model.moe.router_score=sigmoid", no(norm)}, false, false},
           {"a sigmoid of one expert",
            {"model.moe.router_score=sigmoid", "model.moe.router_topk=1"},
            false,
            false},
           {"the softmax's weight of one expert",
            {yes(pre), "model.moe.router_topk=1"},
            false,
            false}}) {
    INFO(c.what);
    const RouterForm form = layer_experts(c.set).form;
    CHECK(form.over_chosen == c.over_chosen);
    // Over the chosen logits a softmax sums to 1 by itself.
    CHECK((form.normalize || form.over_chosen) == c.normalize);
  }
  expect_error({.what = "neither", .set = moe({no(pre), no(norm)})}, "model.moe.norm_topk_prob",
               "sum to 1");
}

TEST_CASE("a printed recipe of a router loads to the same router") {
  for (const Overrides& set : std::vector<Overrides>{{},
                                                     {"model.moe.router_pre_softmax=true"},
                                                     {"model.moe.norm_topk_prob=false"},
                                                     {"model.moe.sparse_step=2"}}) {
    Diagnostics diagnostics;
    const Recipe r =
        load_recipe_text(interchange::model_source(), kBase, "base.yaml", moe(set), diagnostics, 1);
    const Recipe again = load_recipe_text(interchange::model_source(), recipe::print_recipe(r),
                                          "again.yaml", {}, diagnostics, 1);
    INFO(listed(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    CHECK(count(diagnostics, Severity::warning) == 0);
    CHECK(recipe::print_recipe(again, false) == recipe::print_recipe(r, false));
    CHECK(make_plan(again, 1, 512).model.experts()->form.over_chosen ==
          make_plan(r, 1, 512).model.experts()->form.over_chosen);
  }
}

TEST_CASE("a router that could not learn is refused") {
  for (const Overrides& set :
       std::vector<Overrides>{{"model.moe.router_topk=1"},
                              {"model.moe.router_topk=1", "model.moe.router_pre_softmax=true",
                               "model.moe.norm_topk_prob=true"}})
    expect_error({.what = "top-1", .set = moe(set)}, "model.moe.router_topk", "would not learn");
}

TEST_CASE("settings of experts without effect are reported, and refused under strict") {
  struct Case {
    Overrides set;
    const char *field, *gist;
  };
  for (const Case& c : std::vector<Case>{
           {{"model.moe.shared_expert_gate=true"}, "model.moe.shared_expert_gate", "no shared"},
           {{"model.moe.load_balancing_type=aux_loss"},
            "model.moe.load_balancing_type",
            "aux_loss changes nothing"},
           {{"model.moe.load_balancing_type=[aux_loss,seq_aux_loss]",
             "model.moe.aux_loss_coeff=[0.1,0]"},
            "model.moe.load_balancing_type",
            "seq_aux_loss changes nothing"},
           {{"model.moe.aux_loss_coeff=0.1"}, "model.moe.aux_loss_coeff", "is ignored"},
           {{"model.moe.token_drop_policy=position"},
            "model.moe.token_drop_policy",
            "no token is dropped"},
           {{"model.moe.router_score=sigmoid", "model.moe.router_pre_softmax=true"},
            "model.moe.router_pre_softmax",
            "sigmoid"},
           {{"model.moe.router_score=sigmoid", "model.moe.router_topk=1",
             "model.moe.norm_topk_prob=true"},
            "model.moe.norm_topk_prob",
            "one expert"},
           {{"model.moe.expert_capacity_factor=1.5", "model.moe.pad_expert_input_to_capacity=true"},
            "model.moe.pad_expert_input_to_capacity",
            "ep_size 1"},
           {{"recompute=selective", "recompute.modules=[mlp]"},
            "recompute.modules",
            "mlp has nothing to recompute"},
           {{"recompute=selective", "recompute.modules=[shared_experts]"},
            "recompute.modules",
            "no shared expert"},
           {{"recompute=selective", "recompute.modules=[moe,moe_act]"},
            "recompute.modules",
            "moe_act adds nothing"}}) {
    expect_warning({.what = c.gist, .set = moe(c.set)}, c.field, c.gist);
    Overrides strict = moe(c.set);
    strict.push_back("debug.strict=true");
    expect_error({.what = c.gist, .set = strict}, c.field, c.gist);
  }
  expect_error({.what = "pad", .set = moe({"model.moe.pad_expert_input_to_capacity=true"})},
               "model.moe.pad_expert_input_to_capacity", "no capacity");
  expect_no_warning({.what = "dense layers to recompute",
                     .set = moe({"model.moe.first_dense_layers=1", "recompute=selective",
                                 "recompute.modules=[mlp,moe]"})});
  expect_no_warning({.what = "family's gate", .set = moe({"model.architecture=qwen2_moe"})});
}

TEST_CASE("a router has biases by request, by a rate, or by its family") {
  CHECK_FALSE(layer_experts({}).bias);
  CHECK(layer_experts({"model.moe.router_bias=true"}).bias);
  CHECK(layer_experts({"model.moe.router_bias=true"}).bias_rate == 0);
  CHECK(layer_experts({"model.moe.router_bias_update_rate=0.01"}).bias);
  for (const char* family : {"dots1", "glm4_moe"}) {
    const spec::ModelSpec model = plan_of({std::string("model.architecture=") + family}).model;
    const spec::Experts e = *model.experts();
    CHECK((e.bias && e.form.score == RouterScore::sigmoid && e.form.normalize));
    CHECK_FALSE(model.layer(0).experts());
    CHECK(model.layer(1).experts());
  }
}

TEST_CASE("Megatron's switch for the router's bias takes its rate") {
  CHECK(layer_experts({}).bias_rate == 0);
  CHECK(layer_experts({"model.moe_router_enable_expert_bias=true"}).bias_rate == 1e-3);
  CHECK(layer_experts({"model.moe_router_bias_update_rate=0.01"}).bias_rate == 0.01);
}

TEST_CASE("a benchmark's routing is warned of, and belongs to the run") {
  for (const auto& [name, pattern] :
       {std::pair{"balanced", RoutePattern::balanced}, {"zipf", RoutePattern::zipf}}) {
    const std::string set = std::string("debug.route=") + name;
    expect_warning({.what = name, .set = moe({set})}, "debug.route", "trains nothing useful");
    CHECK(plan_of({set}).experts.pattern == pattern);
  }
  CHECK(plan_of({}).experts.pattern == RoutePattern::none);
  // A model without experts has no routes, and its run trains as any other.
  CHECK(make_plan(recipe_of(1, {"debug.route=balanced"}), 1, 512).experts.pattern ==
        RoutePattern::none);
  expect_error({.what = "no pattern", .set = moe({"debug.route=random"})}, "debug.route",
               "is not one of its values");
}

TEST_CASE("a shared expert and chunks hide exchanges, or the recipe gets the reason") {
  const std::string overlap = "model.moe.shared_expert_overlap",
                    chunks = "comm_overlap.moe_dispatch_chunks";
  const std::string one = overlap + "=true", two = chunks + "=2";
  const auto over = [](int ep, const Overrides& more) {
    Overrides set{fmt::format("distributed.ep_size={}", ep), "mixed_precision=fp32"};
    set.insert(set.end(), more.begin(), more.end());
    return Setting{.what = more.back(), .world = 2, .set = moe(set)};
  };
  const char *shared = "model.moe.shared_expert_ffn_hidden_size=64",
             *flex = "model.moe.token_dispatcher=flex",
             *all_gather = "model.moe.token_dispatcher=all_gather";
  expect_accepts(over(2, {shared, one, two}));
  expect_accepts(over(2, {shared, flex, one}));
  expect_accepts(over(2, {"model.moe.expert_capacity_factor=1.5",
                          "model.moe.pad_expert_input_to_capacity=true", two}));
  expect_accepts(over(2, {chunks + "=4"}));
  expect_error(over(2, {chunks + "=5"}), chunks, "5 chunks, but a rank has 4 experts");
  expect_error(over(2, {one}), overlap, "no shared expert");
  expect_error(over(2, {shared, all_gather, one}), overlap, "not all_gather");
  expect_error(over(2, {all_gather, two}), chunks, "brings all tokens to every rank");
  expect_error(over(2, {flex, two}), chunks, "flex adds a token's rows");
  for (const char* scales : {"tensorwise", "delayed"}) {
    const Overrides float8{"mixed_precision={name: bf16_mixed, fp8: hybrid}",
                           fmt::format("mixed_precision.fp8_recipe={}", scales),
                           "debug.emulate_fp8=true"};
    const auto and_more = [&](Overrides more) {
      more.insert(more.begin(), float8.begin(), float8.end());
      return over(2, more);
    };
    expect_error(and_more({two}), chunks, "one scale for all experts");
    expect_accepts(and_more({shared, one}));
  }
  expect_warning(over(1, {shared, one}), overlap, "ep_size 1");
  expect_warning(over(1, {two}), chunks, "ep_size 1");
  expect_warning({.what = "dense", .set = {one}}, overlap, "no experts");
}

TEST_CASE("the table lists the settings that hide the exchanges of tokens") {
  const auto text = [](const Overrides& more) {
    Overrides set{"distributed.ep_size=2"};
    set.insert(set.end(), more.begin(), more.end());
    Diagnostics diagnostics;
    const Recipe r =
        load_recipe_text(interchange::model_source(), kBase, "base.yaml", moe(set), diagnostics, 2);
    INFO(listed(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    const RunPlan plan = make_plan(r, 2, 512);
    std::string all;
    for (const OverlapRow& row : plan.overlap.table)
      for (const char* field : {"model.moe.token_dispatcher", "model.moe.shared_expert_overlap",
                                "comm_overlap.moe_dispatch_chunks"})
        if (row.field == field)
          all += fmt::format("{}: {} {} | ", row.field.substr(row.field.rfind('.') + 1),
                             row.effective, row.reason);
    return all;
  };
  using Catch::Matchers::Contains;
  const char *shared = "model.moe.shared_expert_ffn_hidden_size=64",
             *one = "model.moe.shared_expert_overlap=true",
             *two = "comm_overlap.moe_dispatch_chunks=2";
  CHECK_THAT(text({}), Contains("over ep; their way back in backward hides behind weight") &&
                           Contains("shared_expert_overlap: false") &&
                           Contains("moe_dispatch_chunks: 1 not asked for"));
  CHECK_THAT(text({shared}), Contains("way back hides behind the shared expert's forward"));
  CHECK_THAT(text({shared, one}), Contains("both ways hide behind the shared expert |") &&
                                      Contains("shared_expert_overlap: true its first GEMM"));
  CHECK_THAT(text({two}), Contains("hide behind other chunks |") &&
                              Contains("moe_dispatch_chunks: 2 a rank's experts compute chunk"));
  CHECK_THAT(text({shared, two}), Contains("last one's way back behind the shared"));
  CHECK_THAT(text({shared, one, two}), Contains("both ways hide behind the shared expert, and"));
}

TEST_CASE("settings of experts over ranks without effect are reported") {
  const auto over_ranks = [](const Overrides& more) {
    Overrides set{"distributed.ep_size=2"};
    set.insert(set.end(), more.begin(), more.end());
    return Setting{.what = more.back(), .world = 2, .set = moe(set)};
  };
  const std::string own = "distributed.moe.";
  expect_warning(over_ranks({own + "ignore_router_for_ac=true"}), own + "ignore_router_for_ac",
                 "only recompute.granularity full");
  expect_no_warning(over_ranks({"recompute=full", own + "ignore_router_for_ac=true"}));
  expect_resolved(over_ranks({own + "wrap_outer_model=false"}), own + "wrap_outer_model",
                  "separate units");
  expect_warning(over_ranks({"mixed_precision=fp32", own + "lm_head_precision=fp32"}),
                 own + "lm_head_precision", "changes nothing");
  expect_warning(over_ranks({"mixed_precision=bf16_mixed", own + "lm_head_precision=bf16"}),
                 own + "lm_head_precision", "changes nothing");
  expect_warning(
      over_ranks({"mixed_precision=bf16_mixed", "model.share_embeddings_and_output_weights=true",
                  own + "lm_head_precision=float32"}),
      own + "lm_head_precision", "shares the token table");
  // A different type is not a request without effect: it acts, or runs refuse it by name.
  for (const char* other : {"fp32", "fp16"})
    expect_no_warning(
        over_ranks({"mixed_precision=bf16_mixed", own + "lm_head_precision=" + other}));
}

TEST_CASE("routers are kept under fsdp2 over ranks alone, and experts' own resharding is theirs") {
  const auto plan_of = [](const Overrides& more) {
    Overrides set{"distributed.ep_size=2"};
    set.insert(set.end(), more.begin(), more.end());
    Diagnostics diagnostics;
    const Recipe r =
        load_recipe_text(interchange::model_source(), kBase, "base.yaml", moe(set), diagnostics, 4);
    INFO(listed(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    return make_plan(r, 4, 512);
  };
  const std::string keep = "distributed.moe.ignore_router_for_ac=true";
  CHECK(plan_of({"recompute=full", keep}).recompute.keeps_router);
  CHECK_FALSE(plan_of({"recompute=full"}).recompute.keeps_router);
  CHECK(plan_of({"recompute=full", keep}).memory[0].activations >
        plan_of({"recompute=full"}).memory[0].activations);
  const auto reshard = [&](const char* value) {
    return plan_of({std::string("distributed.moe.reshard_after_forward=") + value})
        .data_parallel.gather.reshard_experts;
  };
  CHECK_FALSE(reshard("false"));
  CHECK(reshard("true"));
  CHECK(reshard("auto"));
  CHECK(plan_of({}).data_parallel.gather.reshard_experts);
}

TEST_CASE("the plan reports the memory of experts above the mean load") {
  const auto more = [](const Overrides& set, int64_t world) {
    Diagnostics diagnostics;
    const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml", moe(set),
                                      diagnostics, world);
    REQUIRE_FALSE(diagnostics.has_errors());
    return make_plan(r, world, 512).fullest().per_tenth_of_rows;
  };
  CHECK(more({}, 1) == 0);
  const Count two = more({"distributed.ep_size=2"}, 2);
  CHECK(two > 0);
  // Twice the tokens of a micro-batch are twice the rows.
  CHECK(more({"distributed.ep_size=2", "train.micro_batch_size=2"}, 2) ==
        Approx(2 * two).epsilon(0.01));
}

}  // namespace plan_expert_rules_test
