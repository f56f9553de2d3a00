#include "schedule/pair_order.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "schedule/pair_clock.h"

namespace mtrain::schedule {

namespace {

using enum PairStep;

// How to choose between parts that the compute stream could run now. A reader is a part that waits
// for an exchange.
enum class Preference {
  readers_last,
  nearest_exchange,
  longest_rest,
  forward_first,
  backward_first
};
// When weight gradients fill the compute stream: before a part that needs an exchange, even if that
// exchange has ended according to the costs; or only when no part can run.
enum class Fill { before_readers, last };

struct Policy {
  Preference preference;
  Fill fill;
};
// Of equally fast policies the first is used. It puts a part that waits for an exchange as late as
// possible, whatever the exchange costs.
constexpr std::array<Policy, 8> kPolicies{{{Preference::readers_last, Fill::before_readers},
                                           {Preference::readers_last, Fill::last},
                                           {Preference::nearest_exchange, Fill::before_readers},
                                           {Preference::nearest_exchange, Fill::last},
                                           {Preference::longest_rest, Fill::before_readers},
                                           {Preference::longest_rest, Fill::last},
                                           {Preference::forward_first, Fill::last},
                                           {Preference::backward_first, Fill::last}}};

// A searched order depends more on exact costs than a policy's order. It must be shorter by this
// share.
constexpr double kWorthwhile = 0.01;
constexpr size_t kBeam = 32;  // how many partial orders the search keeps

bool is_exchange(const PairPart* part) { return part && part->kind == PairPartKind::exchange; }
bool is_compute(const PairPart* part) { return part && part->kind == PairPartKind::compute; }
PairStep other(PairStep pass) { return pass == forward ? backward : forward; }

// A partial order that grows by choices. Exchanges are enqueued automatically. An exchange for
// which the host waits is a choice, too, if the other pass could compute in the meantime.
class Growing {
 public:
  Growing(std::span<const PairPart> f, std::span<const PairPart> b, const PairOptions& options)
      : clock_(f, b, options), delay_wgrad_(options.delay_wgrad) {
    enqueue_exchanges();
  }

  const PairClock& clock() const { return clock_; }
  const std::vector<PairStep>& order() const { return order_; }

  // Returns the steps that the compute stream can begin first. Before the host waits, these are
  // only steps that run during the wait. Returns none at the end.
  std::vector<PairStep> first_choices() const {
    if (const auto exchange = next_exchange()) return fillers(*exchange);
    std::vector<PairStep> first;
    for (const PairStep step : {forward, backward, weight_gradients})
      if (clock_.can(step)) {
        if (!first.empty() && clock_.begin_of(step) < clock_.begin_of(first[0])) first.clear();
        if (first.empty() || clock_.begin_of(step) == clock_.begin_of(first[0]))
          first.push_back(step);
      }
    return first;
  }

  // Also returns steps for which the compute stream would be idle for a while, if they begin before
  // any other step could have ended. These choices make active schedules (Giffler and Thompson
  // 1960). Also returns the exchange for which the host waits.
  std::vector<PairStep> active_choices() const {
    std::vector<PairStep> choices = first_choices();
    if (choices.empty()) return choices;
    if (const auto exchange = next_exchange()) {
      choices.push_back(*exchange);
      return choices;
    }
    const double begin = clock_.begin_of(choices[0]);
    double end = std::numeric_limits<double>::infinity();
    for (const PairStep step : {forward, backward, weight_gradients})
      if (clock_.can(step)) end = std::min(end, clock_.begin_of(step) + clock_.cost(step));
    for (const PairStep step : {forward, backward})
      if (clock_.can(step) && clock_.begin_of(step) > begin && clock_.begin_of(step) <= end)
        choices.push_back(step);
    return choices;
  }

  void choose(PairStep step) {
    enqueue(step);
    enqueue_exchanges();
  }

 private:
  void enqueue(PairStep step) {
    clock_.enqueue(step);
    order_.push_back(step);
    if (!delay_wgrad_ && clock_.has(weight_gradients)) enqueue(weight_gradients);
  }

  void enqueue_exchanges() {
    for (auto next = next_exchange(); next && fillers(*next).empty(); next = next_exchange())
      enqueue(*next);
  }

  // Returns the pass whose next part is an exchange. Of two such passes, it is the one whose
  // exchange can begin first.
  std::optional<PairStep> next_exchange() const {
    std::optional<PairStep> first;
    for (const PairStep pass : {forward, backward})
      if (is_exchange(clock_.next(pass)) && (!first || clock_.ready(pass) < clock_.ready(*first)))
        first = pass;
    return first;
  }

  // Returns the steps that fill the compute stream until the host has the numbers that the exchange
  // waits for. Returns none if the compute stream is busy until then.
  std::vector<PairStep> fillers(PairStep exchange) const {
    const double read = clock_.host_ready(exchange);
    std::vector<PairStep> steps;
    if (!clock_.next(exchange)->host_waits || clock_.compute_free() > read) return steps;
    const PairStep filler = other(exchange);
    if (is_exchange(clock_.next(filler))) return steps;  // that exchange would wait for the filler
    if (is_compute(clock_.next(filler)) && clock_.can(filler) && clock_.ready(filler) <= read)
      steps.push_back(filler);
    const bool at_once = !steps.empty() && clock_.ready(filler) <= clock_.compute_free();
    if (!at_once && clock_.can(weight_gradients)) steps.push_back(weight_gradients);
    return steps;
  }

  PairClock clock_;
  bool delay_wgrad_;
  std::vector<PairStep> order_;
};

// Whether the policy prefers `a` to `b`; `b` comes before `a` in the enumeration.
bool goes_before(const Policy& policy, const PairClock& clock, PairStep a, PairStep b) {
  if (a == weight_gradients) return policy.fill == Fill::before_readers && clock.reads(b);
  // Here `a` is the backward and `b` the forward.
  switch (policy.preference) {
    case Preference::readers_last:
      if (clock.reads(a) && clock.reads(b)) return clock.ready(a) < clock.ready(b);
      if (clock.reads(a) != clock.reads(b)) return clock.reads(b);
      [[fallthrough]];
    case Preference::nearest_exchange: return clock.until_exchange(a) < clock.until_exchange(b);
    case Preference::longest_rest: return clock.rest(a) > clock.rest(b);
    case Preference::forward_first: return false;
    case Preference::backward_first: return true;
  }
  return false;
}

Growing by_policy(Growing order, const Policy& policy) {
  for (auto choices = order.first_choices(); !choices.empty(); choices = order.first_choices()) {
    PairStep best = choices[0];
    for (const PairStep step : choices)
      if (step != best && goes_before(policy, order.clock(), step, best)) best = step;
    order.choose(best);
  }
  return order;
}

// Tries all choices, and continues from those partial orders that may end first (a beam search).
std::vector<PairStep> by_search(const Growing& start) {
  std::vector<Growing> beam{start}, next;
  std::optional<Growing> best;
  const auto ends_before = [](const Growing& a, const Growing& b) {
    const double first = a.clock().earliest_end(), second = b.clock().earliest_end();
    if (first != second) return first < second;
    return a.clock().earliest_end_of_exchanges() < b.clock().earliest_end_of_exchanges();
  };
  while (!beam.empty()) {
    next.clear();
    for (const Growing& order : beam) {
      const std::vector<PairStep> choices = order.active_choices();
      if (choices.empty() && (!best || ends_before(order, *best))) best = order;
      for (const PairStep step : choices) next.emplace_back(order).choose(step);
    }
    std::stable_sort(next.begin(), next.end(), ends_before);
    beam.clear();
    for (Growing& order : next) {
      if (best && !ends_before(order, *best)) continue;
      const auto covers = [&](const Growing& kept) {
        return kept.clock().as_good_as(order.clock());
      };
      if (std::none_of(beam.begin(), beam.end(), covers)) beam.push_back(std::move(order));
      if (beam.size() == kBeam) break;
    }
  }
  return best->order();
}

// Whether an order stays within the bounds of memory.
bool fits(const std::vector<PairStep>& order, std::span<const PairPart> f,
          std::span<const PairPart> b, const PairOptions& options) {
  PairClock clock(f, b, options);
  for (const PairStep step : order) {
    if (!clock.can(step)) return false;
    clock.enqueue(step);
  }
  return true;
}

// Moves weight gradients after exchanges that can then begin earlier. It does not move them if they
// would have to wait until the host has the numbers for the exchange.
std::vector<PairStep> wgrads_after_exchanges(std::vector<PairStep> order,
                                             std::span<const PairPart> f,
                                             std::span<const PairPart> b) {
  PairClock clock(f, b, {});
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    const PairPart* const next =
        order[i + 1] == weight_gradients ? nullptr : clock.next(order[i + 1]);
    if (order[i] == weight_gradients && is_exchange(next) &&
        (!next->host_waits || clock.host_ready(order[i + 1]) <= clock.compute_free()))
      std::swap(order[i], order[i + 1]);
    clock.enqueue(order[i]);
  }
  return order;
}

// Moves weight gradients into earlier waits of the compute stream that are long enough for them.
std::vector<PairStep> with_filled_waits(std::vector<PairStep> order, std::span<const PairPart> f,
                                        std::span<const PairPart> b) {
  PairClock clock(f, b, {});
  for (size_t i = 0; i < order.size(); ++i) {
    const auto here = order.begin() + std::ptrdiff_t(i);
    const auto later = std::find(here, order.end(), weight_gradients);
    if (*here != weight_gradients && later != order.end() && clock.has(weight_gradients)) {
      const PairPart* const part = clock.next(*here);
      const double until = is_compute(part)   ? clock.begin_of(*here)
                           : part->host_waits ? clock.host_ready(*here)
                                              : 0;
      if (clock.begin_of(weight_gradients) + clock.cost(weight_gradients) <= until)
        std::rotate(here, later, later + 1);
    }
    clock.enqueue(order[i]);
  }
  return order;
}

}  // namespace

std::vector<PairStep> pair_order(std::span<const PairPart> f, std::span<const PairPart> b,
                                 const PairOptions& options) {
  std::vector<PairStep> best;
  double length = 0;
  // Sums of the same costs in another order differ by rounding, which must not decide.
  const auto consider = [&](const std::vector<PairStep>& order, double gain = 1e-9) {
    const double candidate = simulate_pair(order, f, b).length;
    if (!best.empty() && candidate >= length * (1 - gain)) return;
    best = order;
    length = candidate;
  };
  const Growing start(f, b, options);
  for (const Policy& policy : kPolicies) consider(by_policy(start, policy).order());
  const std::vector<PairStep> searched = by_search(start);
  consider(searched, kWorthwhile);
  const double preferred = length;
  for (const auto& naive :
       {alternating_pair_order(f, b, options), plain_pair_order(f, b, options, FirstPass::forward),
        plain_pair_order(f, b, options, FirstPass::backward)})
    if (fits(naive, f, b, options)) consider(naive);
  if (options.delay_wgrad) {
    const auto undelayed =
        with_filled_waits(wgrads_after_exchanges(pair_order(f, b, {}), f, b), f, b);
    if (pair_faults(undelayed, f, b, options).empty()) consider(undelayed);
  }
  if (length < preferred) consider(searched, -1e-9);  // it is rarely longer
  if (options.delay_wgrad) consider(with_filled_waits(best, f, b), -1e-9);
  return best;
}

namespace {

// Enqueues the next compute part of a pass, and the exchanges after it.
class Turns {
 public:
  Turns(std::span<const PairPart> f, std::span<const PairPart> b, const PairOptions& options)
      : clock_(f, b, options), options_(options) {}

  bool has(PairStep pass) const { return clock_.has(pass); }
  void turn(PairStep pass) {
    enqueue(pass);
    while (is_exchange(clock_.next(pass))) enqueue(pass);
    while (clock_.has(weight_gradients)) enqueue(weight_gradients);
  }
  std::vector<PairStep> order() { return std::move(order_); }

 private:
  void enqueue(PairStep step) {
    clock_.enqueue(step);
    order_.push_back(step);
    if (!options_.delay_wgrad && clock_.has(weight_gradients)) enqueue(weight_gradients);
  }

  PairClock clock_;
  const PairOptions& options_;
  std::vector<PairStep> order_;
};

}  // namespace

std::vector<PairStep> plain_pair_order(std::span<const PairPart> f, std::span<const PairPart> b,
                                       const PairOptions& options, FirstPass first) {
  Turns turns(f, b, options);
  const PairStep pass = first == FirstPass::forward ? forward : backward;
  while (turns.has(pass)) turns.turn(pass);
  while (turns.has(other(pass))) turns.turn(other(pass));
  return turns.order();
}

std::vector<PairStep> alternating_pair_order(std::span<const PairPart> f,
                                             std::span<const PairPart> b,
                                             const PairOptions& options) {
  Turns turns(f, b, options);
  while (turns.has(forward) || turns.has(backward))
    for (const PairStep pass : {backward, forward})
      if (turns.has(pass)) turns.turn(pass);
  return turns.order();
}

}  // namespace mtrain::schedule
