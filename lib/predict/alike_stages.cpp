#include "predict/alike_stages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "plan/schedule_bounds.h"
#include "predict/recorded_step.h"

namespace mtrain::predict {

namespace {

using Key = std::vector<int64_t>;

// What a stage has, as far as its actions depend on it.
Key contents_of(const RunPlan& plan, int64_t stage) {
  const schedule::Schedule& s = plan.schedule;
  const auto here = [&](int64_t other) {
    return other >= 0 && other < s.stages && s.rank_of(other) == s.rank_of(stage);
  };
  const std::vector<int64_t>& layers = plan.layout.layers_of_stage;
  const int64_t first = std::accumulate(layers.begin(), layers.begin() + stage, int64_t{0});
  Key key{-1,
          stage == 0,
          stage + 1 == s.stages,
          stage == plan.layout.prediction_stage(),
          here(stage - 1),
          here(stage + 1)};
  for (int64_t i = first; i < first + layers[size_t(stage)]; ++i) {
    // The first layer of its kind.
    int64_t kind = 0;
    while (plan.model.layer(kind) != plan.model.layer(i)) ++kind;
    key.insert(key.end(), {kind, plan.fp8.has(i)});
  }
  return key;
}

// Whether the first micro-batch of a stage gathers the parameters of the rank's next one.
bool gathers_next_stage(const RunPlan& plan, const schedule::Schedule& lists) {
  switch (plan.data_parallel.shards) {
    case plan::ShardLevel::nothing: return false;
    case plan::ShardLevel::parameters:
      return !std::ranges::any_of(lists.ranks[0], [](const schedule::Action& a) {
        return a.kind == schedule::ActionKind::unshard;
      });
    default: return true;
  }
}

// How the stages of a rank depend on each other.
struct Dependence {
  bool skips;    // stages can be recorded without others of their rank
  bool chained;  // but a stage depends on its neighbours
};

// The stages of a pipeline rank. Ranks that enqueue the same, as far as a recording knows, have
// equal keys; so have stages, of the same rank or of others.
struct RankStages {
  std::vector<int64_t> stages;
  Key key;
  std::vector<Key> stage_keys;
};

RankStages stages_of(const RunPlan& plan, int64_t pp_rank, const Dependence& depends, bool all) {
  RankStages r{.stages = plan::stages_of_rank(plan.schedule_shape, pp_rank)};
  std::vector<Key> contents;
  for (const int64_t stage : r.stages) {
    contents.push_back(contents_of(plan, stage));
    r.key.insert(r.key.end(), contents.back().begin(), contents.back().end());
  }
  if (all) r.key.push_back(pp_rank);
  for (size_t i = 0; i < contents.size(); ++i) {
    Key key = depends.skips ? contents[i] : r.key;
    if (!depends.skips) key.push_back(int64_t(i));
    // The update has gathered the first parameters of a rank.
    if (depends.skips && plan.data_parallel.shards == plan::ShardLevel::parameters)
      key.push_back(i == 0);
    if (depends.skips && depends.chained)
      for (const size_t other : {i - 1, i + 1}) {
        key.push_back(-2);
        if (other < contents.size())
          key.insert(key.end(), contents[other].begin(), contents[other].end());
      }
    r.stage_keys.push_back(std::move(key));
  }
  return r;
}

// Returns the stages of a rank that are not recorded if only `needed` ones are.
std::set<int64_t> skipped_stages(const std::vector<int64_t>& stages,
                                 const std::set<int64_t>& needed, bool chained) {
  std::set<int64_t> skipped;
  for (size_t i = 0; i < stages.size(); ++i) {
    const bool gathers = chained && i + 1 < stages.size() && needed.contains(stages[i + 1]);
    if (!needed.contains(stages[i]) && !gathers) skipped.insert(stages[i]);
  }
  // A rank whose stages are all known sends messages, too.
  if (skipped.size() == stages.size()) skipped.erase(stages[0]);
  return skipped;
}

}  // namespace

AlikeStages alike_stages(const RunPlan& plan, const schedule::Schedule& lists, bool all) {
  const Dependence depends{.skips = !all && can_skip_stages(plan),
                           .chained = gathers_next_stage(plan, lists)};
  AlikeStages alike;
  alike.of_stage.resize(size_t(plan.layout.stages));
  std::map<Key, size_t> known_ranks;    // places in alike.ranks
  std::map<Key, int64_t> known_stages;  // which stage stands for others
  for (int64_t r = 0; r < plan.layout.pp; ++r) {
    const RankStages rank = stages_of(plan, r, depends, all);
    const auto [at, added] = known_ranks.emplace(rank.key, alike.ranks.size());
    alike.of_rank.push_back(at->second);
    if (added) {
      RankToRecord& recorded = alike.ranks.emplace_back();
      recorded.pp_rank = r;
      for (size_t i = 0; i < rank.stages.size(); ++i)
        if (known_stages.emplace(rank.stage_keys[i], rank.stages[i]).second)
          recorded.stages.insert(rank.stages[i]);
      recorded.skipped = skipped_stages(rank.stages, recorded.stages, depends.chained);
    }
    for (size_t i = 0; i < rank.stages.size(); ++i)
      alike.of_stage[size_t(rank.stages[i])] = known_stages.at(rank.stage_keys[i]);
  }
  return alike;
}

}  // namespace mtrain::predict
