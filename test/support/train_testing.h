// A tiny training that every layout must repeat.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "data/dataset/counting_data.h"
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

using data::CountingData;
using data::PackedCountingData;

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
