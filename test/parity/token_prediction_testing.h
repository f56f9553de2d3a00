// A tiny training with multi-token prediction, and what it computes on each rank.
#pragma once
#include "test/support/comm_testing.h"
#include "test/support/train_testing.h"
#include "train_ranks.h"

namespace token_prediction_testing {

using namespace mtrain;
using namespace train_testing;

struct Losses {
  Result result;
  std::vector<double> further;  // of all depths of all steps
};

inline Losses train(const Recipe& r, Device& device, const comm::World& world, int64_t steps,
                    const std::shared_ptr<const data::Dataset>& data) {
  train::Trainer trainer = make_trainer(device, r, data, world);
  const data::ValidationLoader validation(data, 8,
                                          {.micro_batch = 2,
                                           .dp_rank = trainer.data_parallel().rank(),
                                           .dp_size = trainer.data_parallel().size()});
  Losses out;
  for (int64_t i = 0; i < steps; ++i) {
    const train::StepStats s = trainer.step();
    out.result.losses.push_back(s.loss);
    out.result.norms.push_back(s.grad_norm);
    out.further.insert(out.further.end(), s.mtp_losses.begin(), s.mtp_losses.end());
    if (i == steps / 2) trainer.evaluate(validation);  // must not change the training
  }
  out.result.evaluation = trainer.evaluate(validation);
  return out;
}

inline const Changes kBase{
    "model.num_layers=4",        "model.hidden_size=64",      "model.num_attention_heads=8",
    "model.num_query_groups=8",  "model.init_method_std=0.1", "model.mtp_loss_scaling_factor=0.5",
    "train.global_batch_size=8", "train.micro_batch_size=2",  "optimizer.lr=3e-3"};
inline const Changes kFewExperts{"model.moe.num_experts=4", "model.moe.ffn_hidden_size=32",
                                 "model.moe.first_dense_layers=1",
                                 "model.moe.shared_expert_ffn_hidden_size=32"};
inline const Changes kLatent{
    "model.multi_latent_attention=true", "model.q_lora_rank=20",     "model.kv_lora_rank=24",
    "model.qk_nope_head_dim=8",          "model.qk_rope_head_dim=4", "model.v_head_dim=6"};

inline std::vector<Losses> train_layout(int ranks, const Changes& changes, int64_t steps,
                                        std::shared_ptr<const data::Dataset> data = nullptr) {
  if (!data) data = std::make_shared<CountingData>();
  const Recipe r = tiny(with(kBase, changes), ranks);
  std::vector<Losses> results(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    results[size_t(rank.rank())] = train(r, rank.device, rank.world, steps, data);
  });
  return results;
}

// The same losses and evaluation on all ranks, and as on a single one.
inline void expect_same(const Losses& one, const std::vector<Losses>& ranks, double bound = 1e-5) {
  check_close(one.result.losses, ranks[0].result.losses, bound);
  check_close(one.further, ranks[0].further, bound);
  CHECK(ranks[0].result.evaluation == Approx(one.result.evaluation).epsilon(bound));
  for (const Losses& other : ranks) {
    CHECK((other.result.losses == ranks[0].result.losses));
    CHECK((other.further == ranks[0].further));
  }
}

}  // namespace token_prediction_testing
