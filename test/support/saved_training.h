// Trainings whose checkpoints tests compare: steps from a checkpoint or from the start, and a save.
#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/comm_testing.h"
#include "test/support/train_testing.h"

namespace mtrain {

struct SavedLayout {
  const char* name;
  int ranks;
  train_testing::Changes changes = {};
};

// Experts whose loads are not balanced by a loss.
inline const train_testing::Changes kSavedExperts{
    "model.moe.num_experts=4", "model.moe.router_topk=2", "model.moe.ffn_hidden_size=24",
    "model.moe.load_balancing_type=none"};

// Makes `steps` steps from a checkpoint, or from the start, and saves them in `to`, if it is given.
// Returns the losses.
inline std::vector<double> train_and_save(const train_testing::Changes& model, const SavedLayout& l,
                                          int steps, const std::filesystem::path& from,
                                          const std::filesystem::path& to) {
  using namespace train_testing;
  const Recipe r =
      tiny(with({"train.global_batch_size=24", "train.micro_batch_size=1"}, with(model, l.changes)),
           l.ranks);
  std::vector<double> losses;
  run_ranks(l.ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (!from.empty()) run::resume_run(t, from);
    std::vector<double> own;
    for (int i = 0; i < steps; ++i) own.push_back(t.step().loss);
    if (!to.empty()) run::save_run(t, to);
    if (rank.rank() == 0) losses = own;
  });
  return losses;
}

// Returns the newest checkpoint in a folder, which must have one.
inline std::filesystem::path saved_in(const std::filesystem::path& folder) {
  const auto found = storage::find_latest(folder);
  REQUIRE(found);
  return found->path;
}

// Whether both checkpoints have the same weights and moments, bit by bit.
inline bool same_training(const std::filesystem::path& a, const std::filesystem::path& b) {
  return same_tensors(a, b, storage::TensorSet::weights) &&
         same_tensors(a, b, storage::TensorSet::optimizer);
}

}  // namespace mtrain
