// Fine-tunings with adapters of the models of test/golden/hf.
#pragma once
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "data/dataset/indexed_dataset.h"
#include "storage/safetensors.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"

namespace lora_peft_testing {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

inline fs::path golden_lora(const std::string& name) {
  return fs::path(MTRAIN_SOURCE_DIR) / "test/golden/lora" / name;
}

inline std::vector<float> values_of(const storage::ValueSource& source, const std::string& name) {
  std::vector<float> values(size_t(source.shape(name).count()));
  source.read(name, 0, int64_t(values.size()), values.data());
  return values;
}

inline void write_tensors(const fs::path& file, const std::vector<storage::TensorInfo>& tensors,
                          const std::vector<std::vector<float>>& values) {
  storage::SafetensorsWriter writer(file, tensors, {});
  for (size_t i = 0; i < tensors.size(); ++i)
    writer.write_part(tensors[i].name,
                      ConstSpan{values[i].data(), int64_t(values[i].size()), DType::f32});
  writer.commit();
}

inline double relative_l2(const std::vector<float>& got, const std::vector<float>& expected) {
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

// Returns the prefix of a data set, whose content runs record. No test reads its tokens.
inline std::string recorded_data() {
  static const TemporaryFolder folder;
  const fs::path prefix = folder.path / "text";
  if (!fs::exists(prefix.string() + ".bin")) {
    data::IndexedDatasetWriter writer(prefix, data::TokenType::u16);
    writer.add_tokens(std::vector<int32_t>(100, 7));
    writer.finish();
  }
  return prefix.string();
}

// A fine-tuning of a golden model.
inline Recipe recipe_of(const fs::path& base, const Changes& changes, int64_t world = 1) {
  Diagnostics diagnostics;
  const Changes overrides = with(
      {"model.from=" + base.string(), "tokenizer.type=null", "dataset.train=" + recorded_data(),
       "dataset.seq_length=9", "train.steps=20", "train.global_batch_size=2",
       "train.micro_batch_size=1", "optimizer.lr=1e-2", "optimizer.clip_grad=0",
       "lr_scheduler.warmup_steps=0", "mixed_precision.name=fp32", "train.run_dir=unused"},
      changes);
  Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "tuned", overrides,
                                    diagnostics, world);
  diagnostics.throw_if_errors();
  return r;
}

inline train::Trainer tuned(Device& device, const fs::path& base, const Changes& changes,
                            comm::World world = comm::World::alone()) {
  const storage::SafetensorsReader expected(golden_lora("llama") / "expected.safetensors");
  const Recipe r = recipe_of(base, changes, world.size());
  return make_trainer(device, r, std::make_shared<GoldenIds>(expected), std::move(world),
                      r.model.vocab_size);
}

inline const Changes kOfLlama{"peft.dim=4", "peft.alpha=8",
                              "peft.target_modules=[q_proj,v_proj,up_proj]"};

// A golden model, and the adapters that it gets.
struct TunedModel {
  std::string name;
  Changes peft;
};
inline const std::vector<TunedModel> kTrained{
    {"llama", kOfLlama},
    {"qwen3", {"peft.dim=3", "peft.alpha=12", "peft.match_all_linear=true"}},
    {"phi3", {"peft.dim=2", "peft.alpha=16", "peft.target_modules=[qkv_proj,down_proj]"}},
    {"gpt2",
     {"peft.dim=4", "peft.alpha=8", "peft.target_modules=[qkv_proj,linear_fc1]",
      "model.hidden_dropout=0", "model.attention_dropout=0", "model.embedding_dropout=0"}},
    {"mixtral",
     {"peft.dim=4", "peft.alpha=8", "peft.target_modules=[q_proj,v_proj,experts]",
      "model.moe.load_balancing_type=none"}},
    {"deepseek_v2_lite",
     {"peft.dim=4", "peft.alpha=8",
      "peft.target_modules=[q_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj]",
      "model.moe.load_balancing_type=none"}},
    {"deepseek_v3",
     {"peft.dim=3", "peft.alpha=12",
      "peft.target_modules=[q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj]",
      "model.moe.load_balancing_type=none"}},
    {"qwen3_moe",
     {"peft.dim=4", "peft.alpha=8", "peft.target_modules=[\"*\"]", "peft.moe_rank_scaling=true",
      "model.moe.load_balancing_type=none"}}};

}  // namespace lora_peft_testing
