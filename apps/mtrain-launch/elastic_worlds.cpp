#include "elastic_worlds.h"

#include <utility>

#include <fmt/core.h>

#include "apps/prepare.h"
#include "base/error.h"

namespace mtrain {

ElasticWorlds::ElasticWorlds(TrainOptions training, plan::Machine machine)
    : training_(std::move(training)), machine_(std::move(machine)) {
  // For no ranks in particular.
  const Recipe r = prepare(training_, {.ranks = 0, .machine = machine_, .launched = true}).recipe;
  ranks_of_replica_ = r.distributed.tp_size * r.distributed.pp_size * r.distributed.cp_size;
  samples_ = r.train.global_batch_size / r.train.micro_batch_size;
}

bool ElasticWorlds::fits(int world) {
  if (world < 1 || world % ranks_of_replica_ != 0) return false;
  if (samples_ % (world / ranks_of_replica_) != 0) return false;
  const auto [at, is_new] = known_.try_emplace(world, false);
  if (!is_new) return at->second;
  try {
    prepare(training_, {.ranks = world, .machine = machine_, .launched = true});
    at->second = true;
  } catch (const UserError&) {  // a rule of this layout
  }
  return at->second;
}

int ElasticWorlds::largest(int ranks) {
  while (ranks > 0 && !fits(ranks)) --ranks;
  return ranks;
}

std::string ElasticWorlds::nearest(int ranks) {
  constexpr int kFurthest = 1 << 16;
  const int below = largest(ranks);
  int above = ranks + 1;
  const auto most = samples_ * ranks_of_replica_;
  while (above <= most && above < kFurthest && !fits(above)) ++above;
  const bool has_above = above <= most && above < kFurthest;
  if (below == 0 && !has_above) return "no number of ranks fits this recipe";
  if (below == 0) return fmt::format("the recipe needs at least {} ranks", above);
  if (!has_above) return fmt::format("the recipe can use {} of them", below);
  return fmt::format("the recipe fits {} or {} ranks", below, above);
}

std::string ElasticWorlds::layout(int world) const {
  return fmt::format("dp_size {}", world / ranks_of_replica_);
}

}  // namespace mtrain
