// A tiny training that every layout must repeat: a recipe, and data that a model learns within a
// few steps.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/rng.h"
#include "data/dataset/dataset.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "test/support/all_cases.h"
#include "train/build_trainer.h"

namespace train_testing {

using namespace mtrain;

inline constexpr int64_t kVocab = 61, kSeq = 24;

using Changes = std::vector<std::string>;  // settings, as overrides

inline Changes with(Changes a, const Changes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The three ways to share gradients and weights.
inline const Changes kMegatron{"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"},
    kFsdp2{"distributed.strategy=fsdp2"},
    kAtOnce{"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false"};

// A noisy counting language: learnable within a few steps, with some masked labels.
class CountingData : public data::Dataset {
 public:
  explicit CountingData(int64_t vocab = kVocab, int64_t seq = kSeq) : vocab_(vocab), seq_(seq) {}
  int64_t seq_length() const override { return seq_; }
  int64_t size() const override { return 1 << 20; }
  void sample(int64_t index, data::Sample& out) const override {
    out.input.clear(), out.label.clear(), out.position.clear();
    auto token = int32_t(uniform_below(7, uint64_t(index), uint64_t(vocab_)));
    for (int64_t s = 0; s < seq_; ++s) {
      const bool jump = uniform_below(8, uint64_t(index * seq_ + s), 10) == 0;
      const auto next =
          jump ? int32_t(uniform_below(9, uint64_t(index * seq_ + s), uint64_t(vocab_)))
               : (token * 5 + 3) % int32_t(vocab_);
      out.input.push_back(token);
      out.label.push_back((index + s) % 11 == 0 ? -1 : next);
      out.position.push_back(int32_t(s));
      token = next;
    }
  }

 private:
  int64_t vocab_, seq_;
};

// Every sample has documents of 1 to 10 tokens, and a masked rest: no length is a multiple of a
// chunk.
class PackedCountingData : public CountingData {
 public:
  using CountingData::CountingData;
  bool packed() const override { return true; }
  void sample(int64_t index, data::Sample& out) const override {
    CountingData::sample(index, out);
    out.documents.clear();
    for (int64_t at = 0, d = 0; at < seq_length(); ++d) {
      const auto drawn = int64_t(1 + uniform_below(11, uint64_t(index * seq_length() + d), 10));
      const int64_t length = std::min(drawn, seq_length() - at);
      for (int64_t s = 0; s < length; ++s) out.position[size_t(at + s)] = int32_t(s);
      out.documents.push_back(length);
      at += length;
      if (at == seq_length()) std::fill(out.label.end() - length, out.label.end(), -1);
    }
  }
};

inline Recipe tiny(const Changes& changes = {}, int64_t world = 1) {
  Diagnostics diagnostics;
  std::vector<std::string> overrides{
      "model.num_layers=2",       "model.hidden_size=48",     "model.num_attention_heads=4",
      "model.num_query_groups=2", "model.ffn_hidden_size=80", "dataset.seq_length=24",
      "dataset.train=unused",     "train.steps=20",           "train.global_batch_size=6",
      "train.micro_batch_size=6", "optimizer.lr=1e-2",        "mixed_precision.name=fp32",
      "train.run_dir=unused"};
  overrides.insert(overrides.end(), changes.begin(), changes.end());
  Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "tiny", overrides,
                                    diagnostics, world);
  diagnostics.throw_if_errors();
  return r;
}

inline train::Trainer make_trainer(Device& device, const Recipe& recipe,
                                   std::shared_ptr<const data::Dataset> data,
                                   comm::World world = comm::World::alone(),
                                   int64_t vocab = kVocab) {
  RunPlan plan = plan::make_plan(recipe, world.size(), vocab);
  return train::build_trainer(device, std::move(plan), std::move(data), std::move(world));
}

inline void check_close(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    INFO("step " << i + 1 << ": " << a[i] << " and " << b[i]);
    CHECK(std::abs(a[i] - b[i]) <= bound * std::abs(a[i]));
  }
}

}  // namespace train_testing
