// Trains adapters of experts: the formula against a model with merged weights, what stays as it
// was, and layouts against a single rank.
#include <map>

#include <catch2/catch.hpp>

#include "spec/tensors.h"
#include "train_experts_testing.h"

namespace parity_lora_experts_test {

using namespace mtrain;
using namespace train_testing;

namespace {

const Changes kAll{"peft.dim=4", "peft.alpha=8", "peft.target_modules=[\"*\"]"},
    kExpertsAlone{"peft.dim=3", "peft.alpha=6", "peft.target_modules=[experts]"},
    kScaled{"peft.dim=7", "peft.alpha=7", "peft.target_modules=[experts,v_proj]",
            "peft.moe_rank_scaling=true"};

using Values = std::map<std::string, std::vector<float>>;

Values values_of(train::Trainer& t) {
  Values all;
  for (const model::Parameter* p : t.params().params()) {
    all[p->name] = p->value.to_host_float(t.compute());
    all[p->name].resize(size_t(p->full_shape().count()));  // without the rows of padding
  }
  return all;
}

struct Run {
  std::vector<double> losses, norms;
  bool operator==(const Run&) const = default;
};

Run run_of(train::Trainer& t, int64_t steps) {
  Run all;
  for (int64_t i = 0; i < steps; ++i) {
    const train::StepStats s = t.step();
    all.losses.push_back(s.loss), all.norms.push_back(s.grad_norm);
  }
  return all;
}

train::Trainer trainer(Device& device, const Changes& changes) {
  return make_trainer(device, tiny(changes), std::make_shared<CountingData>());
}

// Adds scale B A of each expert to the matrices of all experts.
void merge_experts(const spec::TensorSpec& weight, const spec::Lora& lora, Values& values) {
  const std::string linear = weight.name.substr(0, weight.name.rfind('.'));
  const auto a = values.find(linear + ".lora.a");
  if (a == values.end()) return;
  const std::vector<float>& B = values.at(linear + ".lora.b");
  std::vector<float>& W = values.at(weight.name);
  const int64_t E = weight.full_shape[0], O = weight.full_shape[1], I = weight.full_shape[2],
                d = lora.expert_dim;
  for (int64_t e = 0; e < E; ++e)
    for (int64_t o = 0; o < O; ++o)
      for (int64_t i = 0; i < I; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < d; ++k)
          sum += double(B[size_t((e * O + o) * d + k)]) *
                 double(a->second[size_t((e * d + k) * I + i)]);
        W[size_t((e * O + o) * I + i)] += lora.expert_scale() * float(sum);
      }
}

struct Case {
  Changes model, peft;
  std::vector<std::pair<int, Changes>> layouts;
};

void expect_layouts_as_alone(const Case& c) {
  const Changes base = join({c.model, c.peft});
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  train::Trainer one = trainer(*device, base);
  const Run alone = run_of(one, 6);
  for (const auto& [ranks, layout] : c.layouts) {
    std::string text;
    for (const std::string& s : layout) text += s + " ";
    INFO(text << "on " << ranks << " ranks");
    std::vector<Run> got(static_cast<size_t>(ranks));
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, tiny(join({base, layout}), rank.world.size()),
                                      std::make_shared<CountingData>(), rank.world);
      got[size_t(rank.rank())] = run_of(t, 6);
    });
    for (const Run& r : got) {
      check_close(alone.losses, r.losses, 1e-5);
      check_close(alone.norms, r.norms, 1e-4);
      CHECK((r == got[0]));
    }
  }
}

}  // namespace

TEST_CASE("adapters of experts begin without effect, learn, and leave all else as it was") {
  for (const Changes& c : {join({kPlain, kAll}), join({kShared, kAll}), join({kBalanced, kScaled}),
                           join({kPlain, kExpertsAlone})}) {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t = trainer(*device, c);
    const Values before = values_of(t);
    const Run got = run_of(t, 12);
    CHECK(got.losses.back() < got.losses[0] - 0.02);
    const Values after = values_of(t);
    int experts = 0;
    for (const model::Parameter* p : t.params().params()) {
      INFO(p->name);
      CHECK(p->frozen != p->adapter);
      CHECK((before.at(p->name) == after.at(p->name)) == p->frozen);
      experts += p->adapter && p->shape.rank() == 3;
    }
    CHECK(experts ==
          4 * (t.plan().model.layer_count() - (t.plan().model.layer(0).experts() ? 0 : 1)));
  }
}

TEST_CASE("adapters of experts compute what weights W + alpha / dim B A compute") {
  for (const Changes& model : {kPlain, kShared}) {
    const auto device = Device::cpu(1);
    train::Trainer adapted = trainer(*device, join({model, kExpertsAlone})),
                   full = trainer(*device, model);
    run_of(adapted, 5), run_of(full, 5);
    Values values = values_of(adapted);
    for (const spec::TensorSpec& w : spec::parameters(adapted.plan().model))
      if (w.split.experts && !w.adapter) merge_experts(w, *adapted.plan().model.lora, values);
    for (const model::Parameter* p : full.params().params())
      model::ParamStore::set_master(full.compute(), *p, values.at(p->name));
    const double with_adapters = adapted.step().loss, with_merged = full.step().loss;
    CHECK(with_merged == Approx(with_adapters).epsilon(1e-6));
  }
}

TEST_CASE("adapters of experts train over data-parallel ranks as on a single rank") {
  expect_layouts_as_alone({kPlain,
                           kAll,
                           {{2, join({ep(2), kMegatron})},
                            {4, join({ep(2), kMegatron})},
                            {2, kFsdp2},
                            {4, join({ep(2), kFsdp2})},
                            {4, join({ep(4), kAtOnce})},
                            {2, join({ep(2), kFsdp2, kAllGather})},
                            {4, join({ep(2), kFsdp2, kFlex})},
                            {4, join({ep(2), kAtOnce, kFull})},
                            {2, join({ep(2), cp2("p2p")})},
                            {1, kFull}}});
}

TEST_CASE("adapters of experts train over tensor-parallel ranks as on a single rank") {
  expect_layouts_as_alone({kShared,
                           kAll,
                           {{2, tp(2)},
                            {2, join({tp(2), kSequence})},
                            {2, join({tp(2), kWhole})},
                            {4, join({tp(2), ep(2), kSequence})},
                            {4, join({tp(2), ep(2), kWhole, kFsdp2})},
                            {4, join({tp(2), kSequence, kFsdp2})},
                            {4, join({tp(4), kSequence})}}});
}

TEST_CASE("adapters of experts train over a pipeline as on a single rank") {
  expect_layouts_as_alone({kPlain,
                           kScaled,
                           {{2, pipelined("1f1b", 1)},
                            {2, pipelined("zero_bubble", 1)},
                            {4, join({pipelined("zero_bubble", 1), ep(2), kFsdp2})},
                            {4, join({pipelined("1f1b", 1), tp(2), kSequence})}}});
}

TEST_CASE("adapters of experts train while chunks of rows travel") {
  expect_layouts_as_alone(
      {kPlain,
       kExpertsAlone,
       {{2, join({ep(2), kMegatron, {"comm_overlap.moe_dispatch_chunks=2"}})},
        {2, join({ep(2), kFsdp2, kFull, {"comm_overlap.moe_dispatch_chunks=4"}})}}});
}

}  // namespace parity_lora_experts_test
