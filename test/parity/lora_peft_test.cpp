// Adapters against peft: what scripts/golden/lora.py has made for the models of test/golden/hf.
// Also checkpoints with adapters alone, and what becomes of them.
#include <cmath>
#include <filesystem>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "interchange/adapter_folder.h"
#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "model/param/param_uploader.h"
#include "run/run_checkpoint.h"
#include "storage/safetensors.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace parity_lora_peft_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

fs::path golden_lora(const std::string& name) {
  return fs::path(MTRAIN_SOURCE_DIR) / "test/golden/lora" / name;
}

std::vector<float> values_of(const storage::ValueSource& source, const std::string& name) {
  std::vector<float> values(size_t(source.shape(name).count()));
  source.read(name, 0, int64_t(values.size()), values.data());
  return values;
}

double relative_l2(const std::vector<float>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double(got[i]) - expected[i], 2);
    norm += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// The ids of expected.safetensors as samples.
class GoldenIds : public data::Dataset {
 public:
  explicit GoldenIds(const storage::SafetensorsReader& file) : shape_(file.shape("ids")) {
    ids_.resize(size_t(shape_.count()));
    file.read_bytes("ids", 0, shape_.count() * 4, ids_.data());
  }
  int64_t seq_length() const override { return shape_[1] - 1; }
  int64_t size() const override { return shape_[0]; }
  void sample(int64_t index, data::Sample& out) const override {
    out.input.clear(), out.label.clear(), out.position.clear();
    for (int64_t s = 0; s < seq_length(); ++s) {
      const size_t at = size_t(index % size() * shape_[1] + s);
      out.input.push_back(ids_[at]), out.label.push_back(ids_[at + 1]);
      out.position.push_back(int32_t(s));
    }
  }

 private:
  const Shape shape_;
  std::vector<int32_t> ids_;
};

// A fine-tuning of a golden model.
Recipe recipe_of(const fs::path& base, const Changes& changes, int64_t world = 1) {
  Diagnostics diagnostics;
  const Changes overrides =
      with({"model.from=" + base.string(), "tokenizer.type=null", "dataset.train=unused",
            "dataset.seq_length=9", "train.steps=20", "train.global_batch_size=2",
            "train.micro_batch_size=1", "optimizer.lr=1e-2", "optimizer.clip_grad=0",
            "lr_scheduler.warmup_steps=0", "mixed_precision.name=fp32", "train.run_dir=unused"},
           changes);
  Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "tuned", overrides,
                                    diagnostics, world);
  diagnostics.throw_if_errors();
  return r;
}

train::Trainer tuned(Device& device, const fs::path& base, const Changes& changes,
                     comm::World world = comm::World::alone()) {
  const storage::SafetensorsReader expected(golden_lora("llama") / "expected.safetensors");
  const Recipe r = recipe_of(base, changes, world.size());
  return make_trainer(device, r, std::make_shared<GoldenIds>(expected), std::move(world),
                      r.model.vocab_size);
}

struct Case {
  std::string name;
  Changes peft;
};
const std::vector<Case> kTrained{
    {"llama", {"peft.dim=4", "peft.alpha=8", "peft.target_modules=[q_proj,v_proj,up_proj]"}},
    {"qwen3", {"peft.dim=3", "peft.alpha=12", "peft.match_all_linear=true"}},
    {"phi3", {"peft.dim=2", "peft.alpha=16", "peft.target_modules=[qkv_proj,down_proj]"}},
    {"gpt2",
     {"peft.dim=4", "peft.alpha=8", "peft.target_modules=[qkv_proj,linear_fc1]",
      "model.hidden_dropout=0", "model.attention_dropout=0", "model.embedding_dropout=0"}}};

// Returns the adapter of peft for each adapter of the model.
std::map<std::string, const interchange::Adapter*> by_parameter(
    const spec::ModelSpec& model, const interchange::AdapterFolder& folder) {
  std::map<std::string, const interchange::Adapter*> all;
  for (const interchange::Adapter& own : interchange::adapters_of(model))
    for (const interchange::Adapter& a : folder.adapters)
      if (a.weight == own.weight && a.first_row == own.first_row && a.rows == own.rows) {
        CHECK(a.scale == Approx(own.scale));
        all[own.a] = all[own.b] = &a;
      }
  return all;
}

std::string factor_of(const std::string& parameter, const interchange::Adapter& a) {
  return parameter.ends_with(".a") ? a.a : a.b;
}

}  // namespace

TEST_CASE("the loss and the gradients of A and B are those of peft") {
  for (const Case& c : kTrained) {
    INFO(c.name);
    const storage::SafetensorsReader expected(golden_lora(c.name) / "expected.safetensors");
    const auto device = Device::cpu(1);
    const Recipe r = recipe_of(golden_hf() / c.name, c.peft);
    train::Trainer t = make_trainer(*device, r, std::make_shared<GoldenIds>(expected),
                                    comm::World::alone(), r.model.vocab_size);
    run::start_from_folder(t);
    const auto base = interchange::open_hf_folder(golden_hf() / c.name);
    const auto folder = interchange::open_adapter_folder(golden_lora(c.name), base.map);
    const auto factors = by_parameter(t.plan().model, folder);
    CHECK(factors.size() == 2 * folder.adapters.size());
    for (const model::Parameter* p : t.params().params())
      if (p->adapter)
        model::ParamStore::set_master(
            t.compute(), *p, values_of(*folder.factors, factor_of(p->name, *factors.at(p->name))));
    const double loss = t.step().loss;
    CHECK(loss == Approx(values_of(expected, "loss")[0]).epsilon(1e-6));
    for (const model::Parameter* p : t.params().params()) {
      if (!p->adapter) continue;
      INFO(p->name);
      const auto want = values_of(expected, factor_of(p->name, *factors.at(p->name)));
      CHECK(relative_l2(p->grad.to_host_float(t.compute()), want) < 1e-5);
    }
  }
}

TEST_CASE(
    "an adapter goes through a checkpoint and an export unchanged, and back into peft's form") {
  for (const Case& c : kTrained) {
    INFO(c.name);
    const TemporaryFolder temporary;
    const auto device = Device::cpu(1);
    train::Trainer t = tuned(*device, golden_hf() / c.name, c.peft);
    run::start_from_folder(t);
    const auto base = interchange::open_hf_folder(golden_hf() / c.name);
    const auto golden = interchange::open_adapter_folder(golden_lora(c.name), base.map);
    const auto factors = by_parameter(t.plan().model, golden);
    for (const model::Parameter* p : t.params().params())
      if (p->adapter)
        model::ParamStore::set_master(
            t.compute(), *p, values_of(*golden.factors, factor_of(p->name, *factors.at(p->name))));
    const auto checkpoint = run::save_run(t, temporary / "checkpoints");
    interchange::export_hf(checkpoint, temporary / "adapter", {});
    const auto exported = interchange::open_adapter_folder(temporary / "adapter", base.map);
    CHECK(exported.adapters.size() == golden.adapters.size());
    for (const interchange::Adapter& a : golden.adapters)
      for (const std::string& name : {a.a, a.b})
        CHECK((values_of(*exported.factors, name) == values_of(*golden.factors, name)));
    interchange::export_hf(checkpoint, temporary / "merged", {.dtype = DType::f32, .merge = true});
    const auto merged = interchange::open_hf_folder(temporary / "merged");
    const interchange::MergedWeights want(base.source(), golden.factors, golden.adapters);
    for (const interchange::MappedTensor& w : base.map.tensors())
      CHECK((values_of(*merged.source(), w.name) == values_of(want, w.name)));
  }
}

TEST_CASE("adapters in peft's form that mtrain cannot compute are named, all at once") {
  const TemporaryFolder temporary;
  const auto base = interchange::open_hf_folder(golden_hf() / "llama");
  const auto refused = [&](const std::string& from, const std::string& to) {
    const fs::path folder = temporary / "adapter";
    fs::remove_all(folder);
    fs::copy(golden_lora("llama"), folder, fs::copy_options::recursive);
    std::string text = read_file((folder / "adapter_config.json").string());
    text.replace(text.find(from), from.size(), to);
    write_file_atomic(folder / "adapter_config.json", text);
    interchange::open_adapter_folder(folder, base.map);
  };
  CHECK_NOTHROW(refused("\"r\": 4", "\"r\": 4"));
  CHECK_THROWS_WITH(refused("\"use_dora\": false", "\"use_dora\": true"), Contains("DoRA"));
  CHECK_THROWS_WITH(refused("\"bias\": \"none\"", "\"bias\": \"all\""), Contains("trained biases"));
  CHECK_THROWS_WITH(refused("\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]"),
                    Contains("as a whole"));
  const auto gpt2 = interchange::open_hf_folder(golden_hf() / "gpt2");
  CHECK_THROWS_WITH(interchange::open_adapter_folder(golden_lora("llama"), gpt2.map),
                    Contains("layers.0.self_attn.q_proj") && Contains("layers.1.mlp.up_proj"));
}

}  // namespace parity_lora_peft_test
