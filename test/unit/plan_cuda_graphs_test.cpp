// Tests when micro-batches can be CUDA graphs, which of them are, and the reason if none can be.
#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_cuda_graphs_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

Overrides on_cuda(Overrides o) {
  o.push_back("train.device=cuda");
  return o;
}

Overrides with(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

CudaGraphs graphs(int64_t world, const Overrides& overrides) {
  Diagnostics diagnostics;
  const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml", overrides,
                                    diagnostics, world);
  return make_plan(r, world, r.model.vocab_size).graphs;
}

}  // namespace

TEST_CASE("requested graphs must be possible, or the error has the reason") {
  const char* field = "train.enable_cuda_graph";
  const auto asked = [](Overrides o) {
    o.push_back("train.enable_cuda_graph=true");
    return on_cuda(std::move(o));
  };
  expect_warning({.what = "cpu", .set = {"train.enable_cuda_graph=true"}}, field,
                 "train.device is not cuda");
  expect_accepts({.what = "possible", .set = asked({})});
  expect_warning({.what = "Megatron's name", .set = {"model.enable_cuda_graph=true"}}, field,
                 "not cuda");
  expect_warning({.what = "its kind", .set = {"model.cuda_graph_impl=local"}}, field, "not cuda");
  expect_accepts({.what = "no kind", .set = {"model.cuda_graph_impl=none"}});
  expect_warning({.what = "pipeline",
                  .world = 2,
                  .set = asked({"distributed.pp_size=2", "distributed.pipeline={}"})},
                 field, "messages");
  expect_accepts({.what = "tp", .world = 2, .set = asked({"distributed.tp_size=2"})});
  expect_accepts({.what = "cp",
                  .world = 2,
                  .set = asked({"distributed.cp_size=2", "distributed.strategy=megatron_ddp",
                                "ddp.overlap_grad_reduce=false"})});
  const Overrides experts{"model.moe.num_experts=8", "model.moe.router_topk=2",
                          "model.moe.ffn_hidden_size=64"};
  expect_accepts({.what = "experts", .set = asked(experts)});
  expect_accepts({.what = "experts under dp",
                  .world = 2,
                  .set = asked(with(experts, {"distributed.strategy=ddp"}))});
  expect_warning(
      {.what = "experts over ranks",
       .world = 2,
       .set = asked(with(experts, {"distributed.strategy=megatron_ddp", "distributed.ep_size=2"}))},
      field, "the host waits for the numbers of rows");
  expect_error({.what = "packs", .set = asked({"packed_sequence.packed_sequence_size=1024"})},
               field, "packed");
  expect_accepts({.what = "fsdp2", .world = 2, .set = asked({})});
  expect_warning({.what = "fsdp2 that reduces in each micro-batch",
                  .world = 2,
                  .set = asked({"distributed.defer_fsdp_grad_sync=false"})},
                 field, "each micro-batch reduces them");
  expect_warning({.what = "fsdp2, two micro-batches",
                  .world = 2,
                  .set = asked({"train.global_batch_size=32", "train.micro_batch_size=8"})},
                 field, "each of a step's 2 micro-batches overlaps");
  expect_accepts({.what = "fsdp2 of one rank", .set = asked({"distributed.strategy=fsdp2"})});
  expect_warning(
      {.what = "zero 3", .world = 2, .set = asked({"distributed.strategy=megatron_fsdp"})}, field,
      "sharded");
  expect_warning({.what = "one micro-batch",
                  .world = 2,
                  .set = asked({"distributed.strategy=ddp", "train.global_batch_size=32",
                                "train.micro_batch_size=16"})},
                 field, "a step's only micro-batch overlaps");
  expect_warning({.what = "two micro-batches",
                  .world = 2,
                  .set = asked({"distributed.strategy=megatron_ddp", "train.global_batch_size=32",
                                "train.micro_batch_size=8"})},
                 field, "each of a step's 2 micro-batches overlaps");
  expect_error({.what = "trace", .set = asked({"debug.trace=t.json"})}, field, "debug.trace");
  expect_error({.what = "fault", .set = asked({"debug.fault.at=adamw"})}, field, "debug.fault");
  expect_error({.what = "strict", .set = {"train.enable_cuda_graph=true", "debug.strict=true"}},
               field, "is disabled: train.device is not cuda");
  expect_no_warning(
      {.what = "auto is silent", .world = 2, .set = on_cuda({"distributed.tp_size=2"})});
}

TEST_CASE("a step is two graphs where it is asked for on one rank, or the reason is reported") {
  const char* field = "train.cuda_graph_scope";
  const Overrides step{"train.cuda_graph_scope=full_iteration"};
  const auto text = [&](int64_t world, const Overrides& more) {
    return print_cuda_graphs(graphs(world, on_cuda(with(step, more))));
  };
  CHECK(text(1, {"train.global_batch_size=64", "train.micro_batch_size=16"}) ==
        "on: a step's 4 micro-batches are one, its update another");
  CHECK(text(1, {"train.global_batch_size=16", "train.micro_batch_size=16"}) ==
        "on: a step's micro-batch is one, its update another");
  CHECK_FALSE(graphs(1, on_cuda({})).full_step);
  for (const char* scope : {"micro_batch", "full"})
    CHECK_FALSE(graphs(1, on_cuda({fmt::format("train.cuda_graph_scope={}", scope)})).full_step);
  CHECK_THAT(text(2, {"distributed.strategy=ddp"}),
             Catch::Contains("on: micro-batches 1 to 15 of 16") &&
                 Catch::Contains("not a whole step: the ranks communicate"));
  expect_accepts({.what = "one rank", .set = on_cuda(step)});
  expect_accepts(
      {.what = "Megatron's name", .set = on_cuda({"model.cuda_graph_scope=full_iteration"})});
  expect_accepts(
      {.what = "Megatron's list", .set = on_cuda({"model.cuda_graph_scope=[full_iteration]"})});
  CHECK(graphs(1, on_cuda({"model.cuda_graph_scope=[full_iteration]"})).full_step);
  expect_warning(
      {.what = "ranks", .world = 2, .set = on_cuda(with(step, {"distributed.strategy=ddp"}))},
      field, "the ranks communicate");
  expect_warning({.what = "cpu", .set = step}, field, "train.device is not cuda");
  expect_warning({.what = "off", .set = on_cuda(with(step, {"train.enable_cuda_graph=false"}))},
                 field, "train.enable_cuda_graph is false");
}

TEST_CASE("graphs are on where nothing forbids them, for micro-batches that do not communicate") {
  const auto text = [](int64_t world, const Overrides& overrides) {
    return print_cuda_graphs(graphs(world, on_cuda(overrides)));
  };
  CHECK(text(1, {}) == "on: every micro-batch");
  CHECK(text(1, {"recompute.granularity=full", "model.hidden_dropout=0.1"}) ==
        "on: every micro-batch");
  CHECK(text(1, {"mixed_precision={name: bf16_mixed, fp8: hybrid, fp8_recipe: delayed}",
                 "hardware.gpu=h100"}) == "on: every micro-batch");
  CHECK(text(1, {"model.moe.num_experts=8", "model.moe.router_topk=2",
                 "model.moe.ffn_hidden_size=64"}) == "on: every micro-batch");
  CHECK(text(1, {"train.enable_cuda_graph=false"}) == "off: train.enable_cuda_graph is false");
  CHECK(text(2, {"distributed.strategy=ddp"}) ==
        "on: micro-batches 1 to 15 of 16, the others communicate");
  CHECK(text(2, {"distributed.strategy=ddp", "ddp.overlap_grad_reduce=false"}) ==
        "on: every micro-batch");
  CHECK(text(2, {"distributed.strategy=megatron_ddp"}) ==
        "on: micro-batches 2 to 15 of 16, the others communicate");
  CHECK(text(2, {"distributed.strategy=megatron_ddp", "ddp.overlap_param_gather=false"}) ==
        "on: micro-batches 1 to 15 of 16, the others communicate");
  const Overrides tp{"distributed.tp_size=2"},
      cp{"distributed.cp_size=2", "distributed.strategy=megatron_ddp",
         "ddp.overlap_grad_reduce=false", "ddp.overlap_param_gather=false"};
  CHECK(text(2, tp) == "off: tp ranks communicate within a micro-batch, which only true records");
  CHECK(text(2, cp) == "off: cp ranks communicate within a micro-batch, which only true records");
  const Overrides named{"train.enable_cuda_graph=true"}, fsdp2{"distributed.strategy=fsdp2"};
  CHECK(text(2, fsdp2) == "off: micro-batches gather sharded parameters, which only true records");
  CHECK(text(2, with(fsdp2, named)) ==
        "on: micro-batches 2 to 15 of 16, the others communicate, with the gathers of their "
        "parameters");
  CHECK(graphs(2, on_cuda(with(fsdp2, named))).communicates);
  CHECK(text(2, with(tp, named)) == "on: every micro-batch, with the communication of tp ranks");
  CHECK(text(4, with(with(tp, cp), named)) ==
        "on: every micro-batch, with the communication of tp and cp ranks");
  CHECK_FALSE(graphs(1, {}).on);  // auto takes the CPU
  CHECK_FALSE(graphs(2, on_cuda({"distributed.strategy=fsdp2"})).off != OverlapRow::Off::no);
}

}  // namespace plan_cuda_graphs_test
