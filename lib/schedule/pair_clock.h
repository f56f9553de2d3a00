// The times of a pair of passes while its parts are enqueued one by one: what simulate_pair() plays
// an order with, and pair_order() chooses by.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "schedule/pair_order.h"

namespace mtrain::schedule {

class PairClock {
 public:
  PairClock(std::span<const PairPart> forward, std::span<const PairPart> backward,
            const PairOptions& options);

  // Enqueues a step and returns when it runs. BugError if there is none of its kind.
  PairStepTime enqueue(PairStep step);

  // Whether there is a next part of the pass, or a part whose weight gradients are left.
  bool has(PairStep step) const;
  // Whether there is one that the bounds of memory let begin. While something is left, one step
  // can.
  bool can(PairStep step) const;
  // Returns when the step would run on its stream if it was enqueued next.
  double begin_of(PairStep step) const;
  // Returns how long the step keeps its stream busy, with the weight gradients that must follow.
  double cost(PairStep step) const;
  double compute_free() const { return compute_free_; }
  // Returns a bound that the end of the last step cannot be below.
  double earliest_end() const;
  // Returns the same bound without the compute stream, to tell apart orders of equal bounds.
  double earliest_end_of_exchanges() const;
  // Whether all that is left can be done as early as from `other`, of which as much is left.
  bool as_good_as(const PairClock& other) const;

  // For passes alone:
  const PairPart* next(PairStep pass) const;  // null behind the last part
  // When the next part can begin: the part before has ended, or ends when this one waits for it.
  double ready(PairStep pass) const;
  // When the host has the numbers that the next part, an exchange, waits for. They travel beside
  // the exchanges under way.
  double host_ready(PairStep pass) const { return of(pass).ready; }
  bool reads(PairStep pass) const;  // whether the next part computes, and waits for an exchange
  // The cost of what the pass computes before its next exchange, or before its end.
  double until_exchange(PairStep pass) const;
  // The cost of all parts that are left, from when the part before has ended.
  double rest(PairStep pass) const { return of(pass).rest; }

 private:
  double cost(const PairPart& part) const {
    return part.cost + (delay_wgrad_ ? 0 : part.weight_cost);
  }
  // What of a part stands between the part before and the part after it at least.
  double chain(const PairPart& part) const {
    return part.cost - part.ahead + (delay_wgrad_ ? 0 : part.weights_first * part.weight_cost);
  }
  struct Pass {
    std::span<const PairPart> parts;
    size_t next = 0;
    double ready = 0;
    double rest = 0;
    int64_t layers = 0;          // how many are named
    std::vector<int64_t> order;  // of each part: how many layers its pass begins before its layer
    int64_t ended = 0;           // layers all of whose parts are enqueued
  };
  static void number_layers(Pass& pass);
  void skip_parts_without_weights();
  const Pass& of(PairStep pass) const { return pass == PairStep::forward ? forward_ : backward_; }

  Pass forward_, backward_;
  bool delay_wgrad_;
  size_t held_ = 0;  // the first part of the backward whose weight gradients are left
  double compute_free_ = 0, exchange_free_ = 0, host_ = 0;
  double compute_rest_ = 0, exchange_rest_ = 0;  // the cost of what is left for each stream
};

}  // namespace mtrain::schedule
