#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "schedule/pair_clock.h"

namespace mtrain::schedule {

namespace {

using enum PairStep;

// The part that a step enqueues.
struct Enqueued {
  PairStep step;
  size_t part;
};

std::string to_string(const Enqueued& e) {
  const char* const prefix = e.step == weight_gradients ? "the weight gradients of " : "";
  return fmt::format("{}part {} of the {}", prefix, e.part,
                     e.step == forward ? "forward" : "backward");
}

class PairCheck {
 public:
  PairCheck(std::span<const PairStep> order, std::span<const PairPart> f,
            std::span<const PairPart> b, const PairOptions& options)
      : order_(order), forward_(f), backward_(b), options_(options) {}

  std::vector<std::string> faults() {
    find_parts();
    if (!faults_.empty()) return std::move(faults_);
    for (size_t i = 0; i < steps_.size(); ++i) check_place(i);
    check_waits();
    return std::move(faults_);
  }

 private:
  const PairPart& part(const Enqueued& e) const {
    return (e.step == forward ? forward_ : backward_)[e.part];
  }
  bool is_exchange(const Enqueued& e) const {
    return e.step != weight_gradients && part(e).kind == PairPartKind::exchange;
  }
  template <class... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void find_parts() {
    size_t next_f = 0, next_b = 0, next_w = 0;
    const auto skip_parts_without_weights = [&] {
      while (next_w < backward_.size() && backward_[next_w].weight_cost == 0) ++next_w;
    };
    for (const PairStep step : order_) {
      skip_parts_without_weights();
      size_t& next = step == forward ? next_f : step == backward ? next_b : next_w;
      if (next >= (step == forward ? forward_ : backward_).size())
        return fault("step {} enqueues {}, which does not exist", steps_.size(),
                     to_string({step, next}));
      if (step == weight_gradients && next >= next_b)
        return fault("step {} enqueues {}, which is not enqueued yet", steps_.size(),
                     to_string({step, next}));
      steps_.push_back({step, next++});
    }
    skip_parts_without_weights();
    if (next_f < forward_.size()) fault("{} is never enqueued", to_string({forward, next_f}));
    if (next_b < backward_.size()) fault("{} is never enqueued", to_string({backward, next_b}));
    if (next_w < backward_.size())
      fault("{} are never enqueued", to_string({weight_gradients, next_w}));
  }

  // Checks what stands between a step and the previous step of its pass.
  void check_place(size_t at) {
    const Enqueued& e = steps_[at];
    if (e.step == weight_gradients) {
      const Enqueued& before = steps_[at - 1];
      if (!options_.delay_wgrad && (before.step != backward || before.part != e.part))
        fault("{} do not directly follow it", to_string(e));
      return;
    }
    if (!is_exchange(e) || e.part == 0) return;
    for (size_t i = at; i-- > 0;) {
      const Enqueued& between = steps_[i];
      if (between.step == e.step) return;
      const bool own_weights = between.step == weight_gradients && !options_.delay_wgrad;
      const bool fills_wait = part(e).host_waits;
      if (!is_exchange(between) && !own_weights && !fills_wait)
        fault("{} could be enqueued before {}", to_string(e), to_string(between));
    }
  }

  // Returns when the step could begin if its stream were free.
  double ready(const Enqueued& e) const {
    if (e.step == weight_gradients) return ends_b_[e.part];
    return e.part == 0 ? 0 : (e.step == forward ? ends_f_ : ends_b_)[e.part - 1] - part(e).ahead;
  }

  // Returns how long the compute stream is busy with the step, with its own weight gradients unless
  // they are delayed.
  double length(const Enqueued& e) const {
    if (e.step == weight_gradients) return backward_[e.part].weight_cost;
    return part(e).cost + (options_.delay_wgrad ? 0 : part(e).weight_cost);
  }

  void check_waits() {
    const PairTimeline t = simulate_pair(order_, forward_, backward_);
    ends_f_.resize(forward_.size());
    ends_b_.resize(backward_.size());
    for (size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i].step != weight_gradients)
        (steps_[i].step == forward ? ends_f_ : ends_b_)[steps_[i].part] = t.steps[i].end;
    const double rounding = 1e-9 * t.length;
    double free = 0;
    PairClock clock(forward_, backward_, options_);
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (!clock.can(steps_[i].step))
        fault("{} begins where the bounds of memory do not allow it", to_string(steps_[i]));
      const double begin = t.steps[i].begin;
      if (!t.steps[i].exchange) {
        if (begin > free + rounding) check_wait(clock, i, free, begin - rounding);
        free = t.steps[i].end;
      }
      clock.enqueue(steps_[i].step);
    }
  }

  // Finds the next step of each kind that could run while step `at` waits.
  void check_wait(const PairClock& clock, size_t at, double from, double until) {
    for (const PairStep step : {forward, backward, weight_gradients}) {
      const auto next = std::find_if(steps_.begin() + std::ptrdiff_t(at) + 1, steps_.end(),
                                     [&](const Enqueued& e) { return e.step == step; });
      if (step == steps_[at].step || next == steps_.end() || !clock.can(step)) continue;
      const Enqueued& e = *next;
      if (!is_exchange(e) && std::max(from, ready(e)) + length(e) <= until)
        fault("{} waits from {:g} to {:g}, but {} could run in the meantime", to_string(steps_[at]),
              from, until, to_string(e));
    }
  }

  const std::span<const PairStep> order_;
  const std::span<const PairPart> forward_, backward_;
  const PairOptions& options_;
  std::vector<Enqueued> steps_;
  std::vector<double> ends_f_, ends_b_;  // of the parts
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> pair_faults(std::span<const PairStep> order, std::span<const PairPart> f,
                                     std::span<const PairPart> b, const PairOptions& options) {
  return PairCheck(order, f, b, options).faults();
}

}  // namespace mtrain::schedule
