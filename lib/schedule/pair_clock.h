// The times of a pair of passes while its parts are enqueued one by one. simulate_pair() simulates
// an order with it, and pair_order() uses it to choose the order.
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
  // Whether there is such a part, and the bounds of memory let it begin. While any part is left, at
  // least one kind of step can begin.
  bool can(PairStep step) const;
  // Returns when the step would begin on its stream if it were enqueued next.
  double begin_of(PairStep step) const;
  // Returns how long the step keeps its stream busy, with the weight gradients that must follow.
  double cost(PairStep step) const;
  double compute_free() const { return compute_free_; }
  // Returns a lower bound of the end of the last step.
  double earliest_end() const;
  // Returns the same bound without the compute stream. It breaks ties between equal bounds.
  double earliest_end_of_exchanges() const;
  // Whether everything that is left can run as early as it can from `other`, which has as much
  // left.
  bool as_good_as(const PairClock& other) const;

  // These are only for passes, not for weight gradients:
  const PairPart* next(PairStep pass) const;  // null after the last part
  // When the next part can begin: when the part before it has ended, or earlier by PairPart::ahead.
  double ready(PairStep pass) const;
  // When the host has the numbers that the next part, an exchange, waits for. They travel at the
  // same time as other exchanges.
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
  // The least time that a part adds between the part before and the part after it.
  double chain(const PairPart& part) const {
    return part.cost - part.ahead + (delay_wgrad_ ? 0 : part.weights_first * part.weight_cost);
  }
  struct Pass {
    std::span<const PairPart> parts;
    size_t next = 0;
    double ready = 0;
    double rest = 0;
    int64_t layers = 0;          // how many layers the parts name
    std::vector<int64_t> order;  // of each part: how many layers its pass begins before its layer
    int64_t ended = 0;           // layers of which all parts are enqueued
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
