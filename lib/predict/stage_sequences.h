// The launches of each stage of a pipeline, sorted by the actions that make them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "predict/group_links.h"
#include "predict/recorded_step.h"
#include "predict/replay.h"
#include "schedule/simulator.h"

namespace mtrain::predict {

// An action as the scope of a launch names it: "1F0 > layers.3.attention", "delayed 1B0".
struct ScopeAction {
  schedule::ActionKind kind;
  int64_t stage = 0, micro_batch = 0;
  bool delayed = false;  // weight gradients of a B that run after its gradient is sent
};
// Returns nothing for the scope of other work.
std::optional<ScopeAction> action_of(const std::string& scope);

// What a stage enqueues for the micro-batches of a step. The first backward writes weight
// gradients, others add to them, and the last one may also reduce them. Of fewer than three
// micro-batches, the one in the middle is the first or the last.
struct MicroBatchSequences {
  LaunchSequence first, middle, last;
  bool empty() const { return middle.empty(); }
};

// What a stage enqueues. Sequences of actions that the schedule does not have are empty.
struct StageSequences {
  // By ActionKind: F, B (without what is delayed), I, W.
  std::array<MicroBatchSequences, 4> actions;
  MicroBatchSequences delayed;    // of B
  LaunchSequence last_gradients;  // of the action that adds to the gradients last
  LaunchSequence gather;          // of an unshard action
};

// A forward and a backward that run together.
struct PairSequence {
  schedule::PairKey key;
  LaunchSequence sequence;
};

// What a rank of a pipeline enqueues in a step of one flush.
struct PipelineRankSequences {
  std::map<int64_t, StageSequences> stages;
  std::vector<PairSequence> pairs;  // each kind of pair once
  LaunchSequence before, after;     // the actions
  std::vector<uint32_t> uploads;    // numbers of what `before` uploads for each micro-batch
  std::optional<uint32_t> send;     // number of a message's launch in the list; its largest
};

// Sorts what a rank of the pipeline has recorded. `actions` are those of the recorded step, which
// has `micro_batches`.
PipelineRankSequences sort_by_action(const device::Records& records,
                                     const schedule::ActionList& actions, int64_t micro_batches,
                                     LaunchList& list, GroupLinks& links);

// Returns all items in their order.
LaunchSequence sequence_of(const device::Records& records, LaunchList& list, GroupLinks& links);

}  // namespace mtrain::predict
