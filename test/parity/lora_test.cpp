// Trains adapters beside frozen weights: the formula against a model with merged weights, what
// stays as it was, and layouts against a single rank.
#include <array>
#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/comm_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace parity_lora_test {

using namespace mtrain;
using namespace train_testing;

namespace {

const Changes kPipeline{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"};
const Changes kLora{"peft.dim=4", "peft.alpha=8"};
const Changes kParts{"peft.dim=4", "peft.alpha=8", "peft.target_modules=[q_proj,v_proj,up_proj]"};
const Changes kLatent{
    "model.multi_latent_attention=true", "model.num_query_groups=4", "model.kv_lora_rank=16",
    "model.qk_nope_head_dim=8",          "model.qk_rope_head_dim=4", "model.v_head_dim=6"};
const Changes kLatentQueries = with(kLatent, {"model.q_lora_rank=12"});
const Changes kFused{"peft.dim=4", "peft.alpha=8", "peft.target_modules=[linear_*]"};

using Values = std::map<std::string, std::vector<float>>;

Values values_of(train::Trainer& t) {
  Values all;
  for (const model::Parameter* p : t.params().params())
    all[p->name] = p->value.to_host_float(t.compute());
  for (const model::Parameter* p : t.params().params())  // without the rows of padding
    all[p->name].resize(size_t(p->full_shape().count()));
  return all;
}

std::vector<double> losses(train::Trainer& t, int64_t steps) {
  std::vector<double> all;
  for (int64_t i = 0; i < steps; ++i) all.push_back(t.step().loss);
  return all;
}

train::Trainer trainer(Device& device, const Changes& changes) {
  return make_trainer(device, tiny(changes), std::make_shared<CountingData>());
}

// Adds scale B A to the rows [first, first + the rows of B) of W (O, I).
void merge(std::vector<float>& W, int64_t first, int64_t I, const std::vector<float>& A,
           const std::vector<float>& B, int64_t dim, float scale) {
  const int64_t rows = int64_t(B.size()) / dim;
  for (int64_t o = 0; o < rows; ++o)
    for (int64_t i = 0; i < I; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < dim; ++k)
        sum += double(B[size_t(o * dim + k)]) * double(A[size_t(k * I + i)]);
      W[size_t((first + o) * I + i)] += scale * float(sum);
    }
}

// Returns the weights of a model without adapters that computes the same.
Values merged(const RunPlan& plan, Values values) {
  const spec::Lora& lora = *plan.model.lora;
  for (const spec::TensorSpec& w : spec::parameters(plan.model)) {
    if (!w.name.ends_with(".weight")) continue;
    const std::string linear = w.name.substr(0, w.name.size() - std::string(".weight").size());
    int64_t first = 0;
    const auto add = [&](spec::Rows rows, int64_t row) {
      const auto a = values.find(linear + adapter_prefix(rows) + ".a");
      if (a == values.end()) return;
      merge(values.at(w.name), row, w.full_shape[1], a->second,
            values.at(linear + adapter_prefix(rows) + ".b"), lora.dim, lora.scale());
    };
    add(spec::Rows::all, 0);
    for (const spec::RowSection& s : w.split.sections) {
      if (s.rows != spec::Rows::all) add(s.rows, first);
      first += s.count();
    }
  }
  return values;
}

// Trains under each layout, and compares with a single rank.
void expect_layouts(const Changes& base, const std::vector<Changes>& layouts) {
  const auto device = Device::cpu(1);
  train::Trainer one = trainer(*device, base);
  const std::vector<double> alone = losses(one, 8);
  for (const Changes& layout : layouts) {
    std::string text;
    int ranks = 1;
    for (const std::string& s : layout) {
      text += s + " ";
      if (s.find("_size=") != std::string::npos && s.find("bucket") == std::string::npos)
        ranks *= s.back() - '0';
    }
    if (text.find("strategy") != std::string::npos) ranks *= 2;
    INFO(text << "on " << ranks << " ranks");
    std::vector<std::vector<double>> got(static_cast<size_t>(ranks));
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      const Recipe r = tiny(with(base, layout), ranks);
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      got[size_t(rank.rank())] = losses(t, 8);
    });
    check_close(alone, got[0], 1e-5);
  }
}

}  // namespace

TEST_CASE("adapters begin without effect, learn, and leave frozen weights as they were") {
  for (const auto& [lora, model] :
       {std::pair{kLora, Changes{}}, std::pair{kParts, Changes{}}, std::pair{kFused, Changes{}},
        std::pair{kLora, kLatent}, std::pair{kFused, kLatentQueries}}) {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer full = trainer(*device, model), adapted = trainer(*device, with(lora, model));
    const Values before = values_of(adapted);
    const std::vector<double> got = losses(adapted, 12);
    CHECK(got[0] == full.step().loss);
    CHECK(got.back() < got[0] - 0.05);
    const Values after = values_of(adapted);
    int changed = 0;
    for (const model::Parameter* p : adapted.params().params()) {
      INFO(p->name);
      CHECK(p->frozen != p->adapter);
      CHECK(bool(p->grad) == p->adapter);
      if (p->frozen)
        CHECK((before.at(p->name) == after.at(p->name)));
      else
        changed += before.at(p->name) != after.at(p->name);
    }
    CHECK(changed == std::ranges::count_if(adapted.params().params(), &model::Parameter::adapter));
  }
}

TEST_CASE("adapters compute what weights W + alpha / dim B A compute") {
  for (const auto& [lora, model] :
       {std::pair{kLora, Changes{}}, std::pair{kParts, Changes{}}, std::pair{kFused, Changes{}},
        std::pair{kLora, Changes{"model.activation=gelu_tanh"}}, std::pair{kLora, kLatent},
        std::pair{kLora, kLatentQueries}}) {
    const auto device = Device::cpu(1);
    train::Trainer adapted = trainer(*device, with(lora, model)), full = trainer(*device, model);
    losses(adapted, 5), losses(full, 5);
    const Values values = merged(adapted.plan(), values_of(adapted));
    for (const model::Parameter* p : full.params().params())
      model::ParamStore::set_master(full.compute(), *p, values.at(p->name));
    const double with_adapters = adapted.step().loss, with_merged = full.step().loss;
    CHECK(with_merged == Approx(with_adapters).epsilon(1e-6));
  }
}

TEST_CASE("bf16 training keeps two bytes of a frozen weight") {
  const auto device = Device::cpu(1);
  train::Trainer t = trainer(*device, with(kLora, {"mixed_precision.name=bf16_mixed"}));
  for (const model::ParamUnit* unit : t.params().units()) {
    int64_t frozen = 0;
    for (const model::OwnedRange& range : unit->owned) {
      if (range.grad) continue;
      frozen += range.count;
      CHECK_FALSE(range.master);
      CHECK(range.value.dtype() == DType::bf16);
    }
    CHECK(frozen == unit->count - unit->trained_count);
    CHECK(unit->own_master.count() == unit->trained_count);
    CHECK(unit->grad.count() == unit->trained_count);
  }
  const std::vector<double> got = losses(t, 12);
  CHECK(got.back() < got[0] - 0.05);
}

TEST_CASE("dropout of adapters is the same in a recomputed pass, and changes the result") {
  const auto device = Device::cpu(1);
  const Changes dropped = with(kLora, {"peft.dropout=0.3"});
  train::Trainer without = trainer(*device, kLora), kept = trainer(*device, dropped),
                 recomputed = trainer(*device, with(dropped, {"recompute.granularity=full"}));
  const std::vector<double> a = losses(kept, 6), b = losses(recomputed, 6);
  CHECK((a == b));
  CHECK(losses(without, 6).back() != a.back());
}

TEST_CASE("adapters train under every layout as on a single rank") {
  const std::vector<Changes> layouts{
      {"distributed.strategy=ddp"},
      kMegatron,
      kFsdp2,
      kAtOnce,
      {"distributed.strategy=megatron_fsdp"},
      {"distributed.tp_size=2"},
      {"distributed.tp_size=2", "distributed.sequence_parallel=true"},
      {"distributed.tp_size=4", "distributed.sequence_parallel=true"},
      {"distributed.cp_size=2"},
      with(kPipeline, {}),
      with(kPipeline, {"distributed.pipeline.pp_schedule=zero_bubble"}),
      with(kPipeline, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}),
      with(kFsdp2, {"distributed.tp_size=2"}),
      with(kFsdp2, {"distributed.cp_size=2"}),
      with(kPipeline, kFsdp2),
      {"recompute.granularity=full"}};
  const Changes batches{"model.num_layers=4", "train.global_batch_size=4",
                        "train.micro_batch_size=1"};
  for (const Changes& lora : {kLora, kParts, kFused, with(kLora, kLatent)})
    expect_layouts(with(lora, batches), layouts);
  std::vector<Changes> recomputed = layouts;
  const Changes heads{"recompute=selective", "recompute.modules=[mla_up_proj,core_attn]"};
  for (const Changes& layout : {Changes{}, kFsdp2, with(layouts[6], {}), with(kPipeline, {})})
    recomputed.push_back(with(heads, layout));
  expect_layouts(with(with(kLora, {"peft.dropout=0.1"}), with(kLatentQueries, batches)),
                 recomputed);
}

TEST_CASE("adapters learn from the losses of further tokens, whose layers are frozen") {
  const Changes further{"model.mtp_num_layers=2", "model.mtp_loss_scaling_factor=0.5"};
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  train::Trainer t = trainer(*device, with(kLora, further));
  const Values before = values_of(t);
  std::vector<double> of_depth_2;
  for (int i = 0; i < 12; ++i) of_depth_2.push_back(t.step().mtp_losses.at(1));
  CHECK(of_depth_2.back() < of_depth_2.front());
  const Values after = values_of(t);
  for (const model::Parameter* p : t.params().params()) {
    INFO(p->name);
    const bool of_predictions =
        p->name.starts_with("layers.2.") || p->name.starts_with("layers.3.");
    CHECK_FALSE((of_predictions && p->adapter));
    CHECK((before.at(p->name) == after.at(p->name)) == p->frozen);
  }
}

TEST_CASE("adapters beside multi-token prediction train under every layout as on a single rank") {
  const Changes further{"model.num_layers=4", "model.mtp_num_layers=2",
                        "model.mtp_loss_scaling_factor=0.5", "train.global_batch_size=4",
                        "train.micro_batch_size=1"};
  const std::vector<Changes> layouts{
      kMegatron,
      kFsdp2,
      kAtOnce,
      {"distributed.tp_size=2", "distributed.sequence_parallel=true"},
      {"distributed.cp_size=2"},
      kPipeline,
      with(kPipeline, {"distributed.pipeline.layout=Ett|ttmmL"}),
      {"distributed.pp_size=4", "distributed.pipeline.layout=Ett|tt|mm|L",
       "distributed.pipeline.pp_schedule=1f1b"},
      with(kPipeline, {"distributed.pipeline.pp_schedule=zero_bubble"}),
      with(kPipeline, kFsdp2),
      {"recompute.granularity=full"}};
  for (const Changes& lora : {kLora, with(kLora, kLatentQueries)})
    expect_layouts(with(lora, further), layouts);
  expect_layouts(with(with(kLora, further), {"model.mtp_use_repeated_layer=true"}),
                 {kFsdp2, kPipeline});
}

TEST_CASE("dropout of adapters drops the same elements under every layout") {
  expect_layouts(with(kParts, {"peft.dropout=0.2", "model.num_layers=4",
                               "peft.target_modules=[q_proj,v_proj,o_proj,up_proj,down_proj]",
                               "train.global_batch_size=4", "train.micro_batch_size=1"}),
                 {kFsdp2,
                  {"distributed.tp_size=2"},
                  {"distributed.tp_size=2", "distributed.sequence_parallel=true"},
                  {"distributed.tp_size=4", "distributed.sequence_parallel=true"},
                  {"distributed.cp_size=2"},
                  {"distributed.cp_size=2", "distributed.tp_size=2"},
                  with(kPipeline, {"distributed.pipeline.pp_schedule=zero_bubble"}),
                  with(kPipeline, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}),
                  with(kFsdp2, {"distributed.tp_size=2"}),
                  {"recompute.granularity=full"}});
}

TEST_CASE("each adapter of a linear drops elements of its own") {
  const auto device = Device::cpu(1);
  train::Trainer t =
      trainer(*device, {"peft.dim=4", "peft.dropout=0.5", "peft.target_modules=[q_proj,k_proj]"});
  std::vector<std::vector<float>> inputs;
  device->set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
    if (info.name == std::string("matmul_lora_fwd") &&
        device->scope().find("layers.0.attention") != std::string::npos)
      inputs.push_back(Tensor::of(info.reads[0]).to_host_float(stream));
  });
  t.step();
  device->set_launch_check({});
  REQUIRE(inputs.size() >= 2);
  std::array<int, 4> kept{};  // by whether the one and the other keep an element
  for (size_t i = 0; i < inputs[0].size(); ++i)
    ++kept[size_t(2 * (inputs[0][i] != 0) + (inputs[1][i] != 0))];
  for (const int n : kept) CHECK(n > int(inputs[0].size()) / 8);
}

TEST_CASE("a run with adapters continues from its checkpoint, under the same or another layout") {
  for (const Changes& precision : {Changes{}, Changes{"mixed_precision.name=bf16_mixed"}}) {
    const Changes base = with(kParts, precision);
    const auto device = Device::cpu(1);
    train::Trainer straight = trainer(*device, base);
    const std::vector<double> want = losses(straight, 4);
    const TemporaryFolder folder;
    train::Trainer saved = trainer(*device, base);
    losses(saved, 2);
    run::save_run(saved, folder.path);
    const auto from = storage::find_latest(folder.path)->path;
    train::Trainer resumed = trainer(*device, base);
    run::resume_run(resumed, from);
    CHECK(losses(resumed, 2) == std::vector<double>(want.begin() + 2, want.end()));
    std::vector<double> sharded;
    run_ranks(2, "thread", [&](TestRank& rank) {
      const Changes layout =
          with(with(base, kFsdp2), {"train.micro_batch_size=3", "train.global_batch_size=6"});
      train::Trainer t =
          make_trainer(rank.device, tiny(layout, 2), std::make_shared<CountingData>(), rank.world);
      run::resume_run(t, from);
      const std::vector<double> own = losses(t, 2);
      if (rank.rank() == 0) sharded = own;
    });
    check_close({want.begin() + 2, want.end()}, sharded, precision.empty() ? 1e-5 : 2e-2);
    train::Trainer other = trainer(*device, with(base, {"peft.alpha=4"}));
    CHECK_THROWS_WITH(run::resume_run(other, from), Catch::Matchers::Contains("peft.alpha"));
  }
}

}  // namespace parity_lora_test
