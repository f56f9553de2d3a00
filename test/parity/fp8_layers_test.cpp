// Tests models whose first and last layers keep bf16 GEMMs beside the 8-bit ones of the others.
#include <algorithm>
#include <set>

#include "train_fp8_testing.h"

namespace parity_fp8_layers_test {

using namespace mtrain;
using namespace train_testing;

namespace {

const Changes kFour{"model.num_layers=4", "optimizer.clip_grad=0"};
const Changes kEnds{"mixed_precision.first_last_layers_bf16=true"};

// Makes layers 1 and 2 add nothing to the residual stream and its gradient.
void silence_inner_layers(train::Trainer& t) {
  t.change_weights([&] {
    for (const char* layer : {"layers.1", "layers.2"})
      for (const char* linear : {".attention.proj.weight", ".mlp.down.weight"}) {
        model::Parameter* p = t.params().find(std::string(layer) + linear);
        t.params().set_master(t.compute(), *p, std::vector<float>(size_t(p->full_shape().count())));
      }
  });
}

struct Step {
  double loss;
  std::map<std::string, std::vector<float>> gradients;
};
Step first_step(const Changes& changes) {
  Run run(with(changes, kFour));
  silence_inner_layers(run.trainer);
  Step step{run.losses(1)[0], first_gradients(run.trainer)};
  std::erase_if(step.gradients, [](const auto& entry) {
    return entry.first.starts_with("layers.1.") || entry.first.starts_with("layers.2.");
  });
  return step;
}

// Returns the layers whose weights some rank quantizes in a step.
std::set<std::string> quantized_layers(const Changes& changes, int ranks) {
  const Recipe r = tiny(changes, ranks);
  std::vector<std::set<std::string>> layers(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    rank.device.set_launch_check([&](Stream&, const device::LaunchInfo& info) {
      if (info.name != std::string("quantize")) return;
      for (const model::Parameter* p : t.params().params())
        if (p->value && p->value.data() == info.reads.at(0).data)
          layers[size_t(rank.rank())].insert(p->unit->name);
    });
    t.step();
    rank.device.set_launch_check({});
  });
  std::set<std::string> all;
  for (const auto& own : layers) all.insert(own.begin(), own.end());
  return all;
}

}  // namespace

TEST_CASE("a layer in bf16 has the bits of a bf16 run's layer") {
  const Step bf16 = first_step(kBf16), ends = first_step(with(kTensorwise, kEnds)),
             none = first_step(kTensorwise);
  CHECK(ends.loss == bf16.loss);
  CHECK((ends.gradients == bf16.gradients));
  CHECK(none.loss != bf16.loss);
  // With every layer in bf16 no weight is quantized.
  const Changes all = with(kEnds, {"mixed_precision.num_layers_at_start_in_bf16=2",
                                   "mixed_precision.num_layers_at_end_in_bf16=2"});
  CHECK(Run(with(with(kTensorwise, kFour), all)).losses(3) == Run(with(kBf16, kFour)).losses(3));
}

TEST_CASE("which layers are in bf16 does not depend on the layout") {
  const Changes three = with(kFour, with(kEnds, {"mixed_precision.num_layers_at_start_in_bf16=2",
                                                 "train.micro_batch_size=3"}));
  const Changes base = with(kTensorwise, three);
  const Result one = train_alone(base, 5);
  REQUIRE(one.losses != train_alone(with(kTensorwise, kFour), 5).losses);
  REQUIRE(quantized_layers(base, 1) == std::set<std::string>{"layers.2"});
  for (const Changes& layout : std::vector<Changes>{
           {"distributed.strategy=megatron_ddp"},
           {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"},
           {"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
            "distributed.pipeline={}"},
           {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.vpp_size=2",
            "distributed.pipeline.pp_schedule=interleaved_1f1b"}}) {
    CAPTURE(layout);
    const Changes changes = with(base, layout);
    CHECK(quantized_layers(changes, 2) == std::set<std::string>{"layers.2"});
    for (const Result& r : train_ranks(2, changes, 5)) check_close(one.losses, r.losses, 1e-2);
  }
  for (const Result& r : train_ranks(2, with(base, {"distributed.strategy=fsdp2"}), 5))
    check_close(one.losses, r.losses, 1e-2);
}

TEST_CASE("the experts of a layer in bf16 are in bf16, too") {
  const Changes experts{"model.moe.num_experts=4", "model.moe.ffn_hidden_size=32",
                        "model.moe.shared_expert_ffn_hidden_size=48", "train.micro_batch_size=3"};
  const Changes base = with(with(kTensorwise, kFour), with(kEnds, experts));
  const std::set<std::string> inner{"layers.1", "layers.1.experts", "layers.2", "layers.2.experts"};
  CHECK(quantized_layers(base, 1) == inner);
  const Changes spread{"distributed.strategy=megatron_ddp", "distributed.ep_size=2"};
  CHECK(quantized_layers(with(base, spread), 2) == inner);
}

}  // namespace parity_fp8_layers_test
