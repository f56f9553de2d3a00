// Where micro-batches can be CUDA graphs, which of them, and what is said where they cannot.
#include "plan/run_plan.h"
#include "recipe_cases.h"

using namespace mtrain;
using namespace recipe_cases;

namespace {

Overrides on_cuda(Overrides o) {
  o.push_back("train.device=cuda");
  return o;
}

CudaGraphs graphs(int64_t world, const Overrides& overrides) {
  Problems problems;
  const Recipe r = load_recipe_text(kBase, "base.yaml", overrides, problems, world);
  return make_plan(r, world, r.model.vocab_size).graphs;
}

}  // namespace

TEST_CASE("graphs asked for must be possible, or the reason is told") {
  const char* field = "train.enable_cuda_graph";
  const auto asked = [](Overrides o) {
    o.push_back("train.enable_cuda_graph=true");
    return on_cuda(std::move(o));
  };
  run({
      {"cpu", 1, {"train.enable_cuda_graph=true"}, E, field, "train.device is not cuda"},
      {"possible", 1, asked({}), E, nullptr, ""},
      {"Megatron's name", 1, {"model.enable_cuda_graph=true"}, E, field, "not cuda"},
      {"its kind", 1, {"model.cuda_graph_impl=local"}, E, field, "not cuda"},
      {"no kind", 1, {"model.cuda_graph_impl=none"}, E, nullptr, ""},
      {"pipeline", 2, asked({"distributed.pp_size=2", "distributed.pipeline={}"}), E, field,
       "messages"},
      {"tp", 2, asked({"distributed.tp_size=2"}), E, field, "tp ranks"},
      {"cp", 2, asked({"distributed.cp_size=2"}), E, field, "cp ranks"},
      {"packs", 1, asked({"packed_sequence.packed_sequence_size=1024"}), E, field, "packed"},
      {"fsdp2", 2, asked({}), E, field, "sharded"},
      {"fsdp2 of one rank", 1, asked({"distributed.strategy=fsdp2"}), E, nullptr, ""},
      {"zero 3", 2, asked({"distributed.strategy=megatron_fsdp"}), E, field, "sharded"},
      {"one micro-batch", 2,
       asked(
           {"distributed.strategy=ddp", "train.global_batch_size=32", "train.micro_batch_size=16"}),
       E, field, "a step's only micro-batch overlaps"},
      {"two micro-batches", 2,
       asked({"distributed.strategy=megatron_ddp", "train.global_batch_size=32",
              "train.micro_batch_size=8"}),
       E, field, "each of a step's 2 micro-batches overlaps"},
      {"trace", 1, asked({"debug.trace=t.json"}), E, field, "debug.trace"},
      {"fault", 1, asked({"debug.fault.at=adamw"}), E, field, "debug.fault"},
      {"not strict",
       1,
       {"train.enable_cuda_graph=true", "debug.strict=false"},
       W,
       field,
       "is turned off: train.device is not cuda"},
      {"auto is silent", 2, on_cuda({"distributed.tp_size=2"}), W, nullptr, ""},
  });
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
  CHECK(text(1, {"train.enable_cuda_graph=false"}) == "off: train.enable_cuda_graph is false");
  CHECK(text(2, {"distributed.strategy=ddp"}) ==
        "on: micro-batches 1 to 15 of 16, the others communicate");
  CHECK(text(2, {"distributed.strategy=ddp", "ddp.overlap_grad_reduce=false"}) ==
        "on: every micro-batch");
  CHECK(text(2, {"distributed.strategy=megatron_ddp"}) ==
        "on: micro-batches 2 to 15 of 16, the others communicate");
  CHECK(text(2, {"distributed.strategy=megatron_ddp", "ddp.overlap_param_gather=false"}) ==
        "on: micro-batches 1 to 15 of 16, the others communicate");
  CHECK_FALSE(graphs(1, {}).on);  // auto takes the CPU
  CHECK_FALSE(graphs(2, on_cuda({"distributed.strategy=fsdp2"})).refused);
}
