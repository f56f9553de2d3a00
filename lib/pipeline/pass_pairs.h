// The order in which a forward and a backward that run together are enqueued, or a backward that
// runs alone and whose weight gradients are delayed.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "model/stage_pass.h"
#include "schedule/action.h"
#include "schedule/pair_order.h"
#include "schedule/pass_costs.h"

namespace mtrain::pipeline {

struct PassOrder {
  std::vector<schedule::PairStep> steps;
  // By part of the backward: whether its weight gradients are a step of their own. The others run
  // with their part or, as other settings say, after the pair.
  std::vector<bool> own_wgrads;
};

// Finds the order of each pair of stages once, since all micro-batches have the same.
class PassPairs {
 public:
  // Without `costs` the passes take turns, the backward first. With `head_shares_table` an output
  // layer comes behind the backward of the embedding.
  PassPairs(const std::optional<schedule::PassCosts>& costs, bool delay_wgrad,
            bool head_shares_table)
      : costs_(costs), delay_wgrad_(delay_wgrad), head_shares_table_(head_shares_table) {}

  // `forward` and `backward` are the passes of the actions `f` and `b`. `keeps_wgrads` tells of
  // which parts of the backward the weight gradients do not run within the pair.
  using KeepsWgrads = std::function<bool(const model::StagePass::Part&)>;
  const PassOrder& pair(const schedule::Action& f, const model::StagePass& forward,
                        const schedule::Action& b, const model::StagePass& backward,
                        const KeepsWgrads& keeps_wgrads);
  const PassOrder& alone(const schedule::Action& b, const model::StagePass& backward,
                         const KeepsWgrads& keeps_wgrads);
  bool orders_lone_backwards() const { return costs_ && delay_wgrad_; }

 private:
  const PassOrder& find(int64_t forward_stage, const model::StagePass* forward,
                        const schedule::Action& b, const model::StagePass& backward,
                        const KeepsWgrads& keeps_wgrads);

  const std::optional<schedule::PassCosts> costs_;
  const bool delay_wgrad_, head_shares_table_;
  // By the stages of the two (of one alone: -1), and the kind of the backward.
  std::map<std::tuple<int64_t, int64_t, schedule::ActionKind>, PassOrder> known_;
};

}  // namespace mtrain::pipeline
