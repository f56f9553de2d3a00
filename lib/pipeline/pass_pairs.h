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
  // with their part or, if another setting delays them, after the pair.
  std::vector<bool> own_wgrads;
};

// Computes the order of each pair of stages once, since it is the same for all micro-batches.
class PassPairs {
 public:
  // Without `costs` the passes take turns, the backward first. With `head_shares_table` an output
  // layer comes after the backward of the embedding.
  PassPairs(const std::optional<schedule::PassCosts>& costs, bool delay_wgrad,
            bool head_shares_table)
      : costs_(costs), delay_wgrad_(delay_wgrad), head_shares_table_(head_shares_table) {}

  // `forward` and `backward` are the passes of the actions `f` and `b`. `keeps_wgrads` returns
  // whether the weight gradients of a part of the backward do not run within the pair.
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
  // By the stages of the forward (-1: none) and of the backward, and the kind of the backward.
  std::map<std::tuple<int64_t, int64_t, schedule::ActionKind>, PassOrder> known_;
};

}  // namespace mtrain::pipeline
