// Trains the ready recipes of models with experts, cut down, over eight ranks as a single rank
// does.
#include <catch2/catch.hpp>

#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "train_ranks.h"

namespace parity_ready_experts_test {

using namespace mtrain;
using namespace train_testing;

namespace {

constexpr int64_t kTokens = 32;

// Sizes that keep a recipe's family, router, losses and strategy.
const Changes kSmall{"train.device=cpu",
                     "model.hidden_size=64",
                     "model.num_attention_heads=8",
                     "model.num_query_groups=4",
                     "model.kv_channels=8",
                     "model.ffn_hidden_size=96",
                     "model.vocab_size=64",
                     "model.moe.ffn_hidden_size=48",
                     "train.global_batch_size=16",
                     "train.steps=3",
                     "train.run_dir=unused",
                     "optimizer.lr=1e-2"};

Recipe small(const std::string& name, const Changes& changes, int64_t world) {
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe(
      interchange::model_source(), MTRAIN_SOURCE_DIR "/recipes/" + name + ".yaml",
      with(with(kSmall, {fmt::format("dataset.seq_length={}", kTokens)}), changes), diagnostics,
      world);
  INFO(name << "\n" << diagnostics.text(recipe::Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

struct Steps {
  std::vector<double> losses;
  double first_norm = 0;
};

std::vector<Steps> three_steps(const Recipe& r, int ranks) {
  std::vector<Steps> all(static_cast<size_t>(ranks));
  const auto data = std::make_shared<CountingData>(kVocab, kTokens);
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, data, rank.world);
    Steps& own = all[size_t(rank.rank())];
    for (int i = 0; i < 3; ++i) {
      const train::StepStats stats = t.step();
      own.losses.push_back(stats.loss);
      if (i == 0) own.first_norm = stats.grad_norm;
    }
  });
  return all;
}

}  // namespace

TEST_CASE("the ready recipes with experts train over eight ranks, cut to one layer per stage") {
  struct Case {
    const char* name;
    Changes model, layout;
  };
  for (const Case& c : std::vector<Case>{
           // Two stages of one layer on each of two pipeline ranks.
           {"mixtral_8x7b",
            {"model.num_layers=4"},
            {"distributed.pp_size=2", "distributed.vpp_size=2", "distributed.ep_size=4"}},
           {"moe_16b_shared_expert",
            {"model.num_layers=2", "model.moe.shared_expert_ffn_hidden_size=96"},
            {}},
           {"qwen3_30b_a3b", {"model.num_layers=2"}, {}}}) {
    CAPTURE(c.name);
    const Recipe alone =
        small(c.name, with(c.model, {"~distributed", "~comm_overlap", "recompute=none"}), 1);
    const Recipe spread = small(c.name, with(c.model, c.layout), 8);
    CHECK(plan::make_plan(spread, 8, 64).layout.ep > 1);
    const Steps one = three_steps(alone, 1)[0];
    CHECK(one.losses[2] < one.losses[0]);
    // Both compute in bf16, whose 8 bits round each activation of the two layouts differently.
    for (const Steps& rank : three_steps(spread, 8)) {
      check_close(one.losses, rank.losses, 2e-2);
      CHECK(rank.first_norm == Approx(one.first_norm).epsilon(2e-2));
    }
  }
}

}  // namespace parity_ready_experts_test
