// Tests the costs that the plan assumes for the parts of a pass.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/exchange_forecast.h"
#include "plan/expert_traffic.h"
#include "plan/pass_costs.h"
#include "plan/recompute_cost.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"
#include "recipe_cases.h"

namespace plan_pass_costs_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

constexpr int64_t kVocab = 512;

RunPlan planned(int64_t world, const Overrides& more, const Machine& machine = {}) {
  Overrides set{"model.moe.num_experts=16", "train.global_batch_size=64"};
  set.insert(set.end(), more.begin(), more.end());
  Diagnostics diagnostics;
  const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml", set,
                                    diagnostics, world, machine);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return make_plan(r, world, kVocab);
}

schedule::PassCosts costs(int64_t world, const Overrides& more) {
  return planned(world, more).pass_costs.value();
}

Overrides on_gpu(Overrides more) {
  more.insert(more.end(), {"train.device=cuda", "comm.backend=nccl"});
  return more;
}

}  // namespace

TEST_CASE("costs follow the GPU of a rank unless the recipe names one") {
  const Overrides pairs = on_gpu({"distributed.ep_size=4", "mixed_precision=bf16_mixed",
                                  "comm_overlap.overlap_moe_expert_parallel_comm=true"});
  const auto on = [&](const char* gpu, const Overrides& more) {
    Overrides set = pairs;
    set.insert(set.end(), more.begin(), more.end());
    return planned(4, set, {.gpus = 4, .gpu_name = gpu, .ranks_per_host = 4});
  };
  const char *a100 = "NVIDIA A100-SXM4-80GB", *h100 = "NVIDIA H100 80GB HBM3";
  const auto text = [&](const char* gpu, const Overrides& more) {
    return print_pass_costs(on(gpu, more).pipeline.pair_costs.value());
  };
  CHECK(text(a100, {}) == text(a100, {}));
  CHECK(text(a100, {}) != text(h100, {}));
  // The recipes that a start compares are equal, since they do not depend on the machine.
  CHECK(on(a100, {}).text.recipe == on(h100, {}).text.recipe);
  CHECK(text(a100, {"hardware.gpu=h100"}) == text(h100, {"hardware.gpu=h100"}));
}

TEST_CASE("the attention of several packs costs that of each, not of one sequence") {
  const auto attention = [](const char* size, int packs) {
    return costs(2, {"distributed.ep_size=2",
                     fmt::format("packed_sequence.packed_sequence_size={}", size),
                     fmt::format("train.micro_batch_size={}", packs)})
        .attention.forward;
  };
  CHECK(attention("1024", 4) == Approx(4 * attention("1024", 1)));
  CHECK(attention("4096", 1) > 1.05 * attention("1024", 4));
}

TEST_CASE("experts talk over the links of a node if their group lies within it") {
  // Returns whether the exchange is as fast as within a node that has all ranks.
  const auto within = [](int64_t world, const Overrides& layout, int gpus_per_node) {
    const auto exchange = [&](int64_t gpus) {
      Overrides set = on_gpu(layout);
      set.push_back(fmt::format("hardware.gpus_per_node={}", gpus));
      return costs(world, set).exchange.forward;
    };
    return exchange(gpus_per_node) == exchange(world);
  };
  const auto ep = [](int n) { return fmt::format("distributed.ep_size={}", n); };
  const std::string cp = "distributed.cp_size=2", tp = "distributed.tp_size=2",
                    sp = "distributed.sequence_parallel=true",
                    whole = "distributed.expert_tp_size=1";
  CHECK(within(16, {ep(8)}, 8));
  CHECK_FALSE(within(16, {ep(16)}, 8));
  CHECK(within(16, {ep(8), cp}, 8));  // ep includes ranks of cp
  CHECK(within(16, {ep(8), tp, sp, whole}, 8));
  CHECK_FALSE(within(16, {ep(8), tp, sp}, 8));  // parts of experts on ranks of tp
  CHECK(within(16, {ep(4), tp, sp}, 8));
  CHECK_FALSE(within(16, {ep(8)}, 12));  // ranks 8 to 15 lie on two nodes
}

TEST_CASE("the rates of computations follow the type, the GPU and the threads") {
  const std::string ep = "distributed.ep_size=4";
  const auto gpu = [&](const char* name, const Overrides& more) {
    Overrides set = on_gpu({ep, fmt::format("hardware.gpu={}", name)});
    set.insert(set.end(), more.begin(), more.end());
    return costs(4, set);
  };
  const char *fp32 = "mixed_precision=fp32", *bf16 = "mixed_precision=bf16_mixed";
  for (const auto& [name, times] : {std::pair{"a100", 312 / 19.5}, {"h100", 989.4 / 66.9}}) {
    CHECK(gpu(name, {fp32}).mlp.forward == Approx(times * gpu(name, {bf16}).mlp.forward));
    CHECK(gpu(name, {fp32}).route.forward == Approx(times * gpu(name, {bf16}).route.forward));
  }
  const Overrides fp8{"mixed_precision={name: bf16_mixed, fp8: hybrid}",
                      "model.ffn_hidden_size=768"};
  const auto in_16_bits = gpu("h100", {bf16, fp8[1]}), in_8_bits = gpu("h100", fp8);
  CHECK(in_8_bits.experts.forward == Approx(in_16_bits.experts.forward / 2));
  CHECK(in_8_bits.experts.weights == Approx(in_16_bits.experts.weights / 2));
  CHECK(in_8_bits.route.forward == in_16_bits.route.forward);
  CHECK(in_8_bits.head.forward == in_16_bits.head.forward);

  const auto cpu = [&](const std::string& more) { return costs(4, {ep, more}); };
  const auto one = cpu("train.threads=1");
  CHECK(cpu("train.threads=8").experts.forward == Approx(one.experts.forward / 8));
  CHECK(cpu("train.threads=0").experts.forward == one.experts.forward);
  CHECK(cpu("debug.compute_slowdown=5").experts.forward == Approx(5 * one.experts.forward));
}

TEST_CASE("a window makes the attention of its layers cheaper") {
  const auto attention = [](const Overrides& more) {
    Overrides set{"distributed.ep_size=2"};
    set.insert(set.end(), more.begin(), more.end());
    return costs(2, set).attention.forward;
  };
  // A token meets 512 of 1024 positions on average; with a window of 256, which the first tokens do
  // not fill, 224; with one of 1, about 1.
  const double all = attention({}), each = attention({"model.window_size=256"}),
               one = attention({"model.window_size=1"});
  CHECK((all - each) / (all - one) == Approx((512 - 224) / (512 - 0.5 * (2 - 1.0 / 1024))));
  const Overrides half{"model.window_size=256", "model.window_attn_skip_freq=2"};
  CHECK(attention(half) == Approx((all + each) / 2));
  CHECK(attention({"model.window_size=1024"}) == Approx(all));
  CHECK(attention({"model.window_size=4096"}) == Approx(all));
}

TEST_CASE("every call of an exchange takes the link's latency") {
  const auto added = [](const Overrides& more, const Overrides& link = {}) {
    Overrides set{"distributed.ep_size=2"};
    set.insert(set.end(), more.begin(), more.end());
    const auto without = costs(4, set).exchange;
    set.push_back("comm.link.latency_us=1000");
    set.insert(set.end(), link.begin(), link.end());
    const auto with = costs(4, set).exchange;
    return std::pair{1e3 * (with.forward - without.forward),
                     1e3 * (with.backward - without.backward)};
  };
  const auto [forward, backward] = added({});
  CHECK(forward == Approx(1));  // rows, and weights with them
  CHECK(backward == Approx(1));
  CHECK(added({"model.moe.token_dispatcher=flex"}).first == Approx(1));  // their experts, too
  // One call each for rows in both directions, weights in one, and choices.
  CHECK(added({"model.moe.token_dispatcher=all_gather"}).first == Approx(2));
  CHECK(added({}, {"comm.link.only=[dp, tp]"}) == std::pair{0.0, 0.0});
  CHECK(added({}, {"comm.link.only=[dp, ep]"}).first == Approx(1));
  // Over tp, one call each for rows in both directions and weights in one.
  const auto parts = added({"distributed.tp_size=2", "distributed.sequence_parallel=true"});
  CHECK(parts.first == Approx(2.5));
}

TEST_CASE(
    "a layer that predicts several further tokens counts once for each, and so does the head") {
  const auto with = [](const Overrides& more) {
    Overrides set{"distributed.ep_size=2"};
    set.insert(set.end(), more.begin(), more.end());
    return planned(2, set);
  };
  for (const Overrides& recompute : {Overrides{"recompute=none"}, Overrides{"recompute=full"}}) {
    CAPTURE(recompute);
    const auto further = [&](const char* depths, const char* repeated) {
      return with({recompute[0], fmt::format("model.mtp_num_layers={}", depths),
                   fmt::format("model.mtp_use_repeated_layer={}", repeated)});
    };
    const RunPlan none = with(recompute), two = further("2", "false"),
                  repeated = further("2", "true");
    const double layers = double(none.model.layer_count());
    CHECK(expert_bytes_per_step(two) ==
          Approx(expert_bytes_per_step(none) * (layers + 2) / layers));
    CHECK(expert_bytes_per_step(repeated) == Approx(expert_bytes_per_step(two)));
    CHECK(recomputed_flops(repeated) == Approx(recomputed_flops(two)));

    const schedule::PassCosts& c = none.pass_costs.value();
    double layer = 0;
    for (const schedule::PartCost& part : {c.attention, c.route, c.experts, c.shared})
      layer += part.forward + part.backward + part.weights;
    if (none.recompute.group > 0)
      for (const schedule::PartCost& part : {c.attention, c.route, c.experts, c.shared})
        layer += part.forward;
    const double before = exchange_forecast(none).value().without,
                 micro_batches = double(none.layout.step_micro_batches());
    CHECK(exchange_forecast(two).value().without - before ==
          Approx(2 * micro_batches * (layer + c.head.forward)));
    CHECK(exchange_forecast(repeated).value().step == Approx(exchange_forecast(two).value().step));
  }
}

}  // namespace plan_pass_costs_test
