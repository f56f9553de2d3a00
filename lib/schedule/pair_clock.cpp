#include "schedule/pair_clock.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace mtrain::schedule {

PairClock::PairClock(std::span<const PairPart> forward, std::span<const PairPart> backward,
                     const PairOptions& options)
    : forward_{.parts = forward}, backward_{.parts = backward}, delay_wgrad_(options.delay_wgrad) {
  for (Pass* const pass : {&forward_, &backward_}) {
    number_layers(*pass);
    for (const PairPart& part : pass->parts) {
      MT_CHECK(part.cost >= 0 && part.weight_cost >= 0, "a part costs {}, its weight gradients {}",
               part.cost, part.weight_cost);
      MT_CHECK(part.latency >= 0 && part.latency <= part.cost,
               "{} of an exchange of {} are latency", part.latency, part.cost);
      MT_CHECK(part.ahead >= 0 && part.ahead <= part.cost, "{} of a part of {} need no exchange",
               part.ahead, part.cost);
      MT_CHECK(part.weight_cost == 0 || (pass == &backward_ && part.kind == PairPartKind::compute),
               "only parts of a backward that compute leave weight gradients");
      pass->rest += chain(part);
      (part.kind == PairPartKind::exchange ? exchange_rest_ : compute_rest_) += part.cost;
      compute_rest_ += part.weight_cost;
    }
  }
  skip_parts_without_weights();
}

// The parts of a layer are adjacent.
void PairClock::number_layers(Pass& pass) {
  int64_t layer = -1;
  for (const PairPart& part : pass.parts) {
    if (part.layer >= 0 && part.layer != layer) {
      layer = part.layer;
      ++pass.layers;
    }
    pass.order.push_back(pass.layers - 1);
  }
}

void PairClock::skip_parts_without_weights() {
  while (held_ < backward_.parts.size() && backward_.parts[held_].weight_cost == 0) ++held_;
}

const PairPart* PairClock::next(PairStep pass) const {
  const Pass& p = of(pass);
  return p.next < p.parts.size() ? &p.parts[p.next] : nullptr;
}

bool PairClock::has(PairStep step) const {
  return step == PairStep::weight_gradients ? held_ < backward_.next : next(step) != nullptr;
}

bool PairClock::can(PairStep step) const {
  if (!has(step)) return false;
  if (step == PairStep::weight_gradients) return true;
  const Pass& pass = of(step);
  if (pass.parts[pass.next].layer < 0) return true;
  const int64_t layer = pass.order[pass.next];
  if (step == PairStep::backward)
    return held_ >= backward_.next || layer - backward_.order[held_] < kLayersAhead;
  // Each pass counts its layers as shares of the pass: the two may have different numbers of
  // layers.
  return backward_.ended == backward_.layers ||
         (layer + 1 - kLayersAhead) * backward_.layers <= backward_.ended * forward_.layers;
}

double PairClock::ready(PairStep pass) const {
  const PairPart* const part = next(pass);
  return of(pass).ready - (part ? part->ahead : 0);
}

bool PairClock::reads(PairStep pass) const {
  const Pass& p = of(pass);
  return p.next > 0 && p.next < p.parts.size() && p.parts[p.next].kind == PairPartKind::compute &&
         p.parts[p.next - 1].kind == PairPartKind::exchange;
}

double PairClock::cost(PairStep step) const {
  return step == PairStep::weight_gradients ? backward_.parts[held_].weight_cost
                                            : cost(*next(step));
}

double PairClock::until_exchange(PairStep pass) const {
  const Pass& p = of(pass);
  double sum = 0;
  for (size_t i = p.next; i < p.parts.size() && p.parts[i].kind == PairPartKind::compute; ++i)
    sum += cost(p.parts[i]);
  return sum;
}

double PairClock::earliest_end() const {
  return std::max(compute_free_ + compute_rest_, earliest_end_of_exchanges());
}

double PairClock::earliest_end_of_exchanges() const {
  return std::max({exchange_free_ + exchange_rest_, forward_.ready + forward_.rest,
                   backward_.ready + backward_.rest});
}

bool PairClock::as_good_as(const PairClock& other) const {
  const auto left = [](const PairClock& c) {
    return std::tuple(c.forward_.next, c.backward_.next, c.held_);
  };
  return left(*this) == left(other) && compute_free_ <= other.compute_free_ &&
         exchange_free_ <= other.exchange_free_ && host_ <= other.host_ &&
         forward_.ready <= other.forward_.ready && backward_.ready <= other.backward_.ready;
}

double PairClock::begin_of(PairStep step) const {
  if (step == PairStep::weight_gradients) return std::max(host_, compute_free_);
  const PairPart* const part = next(step);
  MT_CHECK(part, "the pass has no part left");
  const double free = part->kind == PairPartKind::exchange ? exchange_free_ : compute_free_;
  return std::max({host_, free, ready(step)});
}

PairStepTime PairClock::enqueue(PairStep step) {
  if (step == PairStep::weight_gradients) {
    MT_CHECK(has(step), "weight gradients are to be enqueued, and none are left");
    const double begin = begin_of(step), cost = backward_.parts[held_].weight_cost;
    compute_free_ = begin + cost;
    compute_rest_ -= cost;
    // The event that an exchange waits for is recorded when the exchange is enqueued, unless
    // another part has been enqueued in between.
    if (held_ + 1 == backward_.next)
      backward_.ready = begin + backward_.parts[held_].weights_first * cost;
    ++held_;
    skip_parts_without_weights();
    return {begin, compute_free_, false};
  }
  Pass& pass = step == PairStep::forward ? forward_ : backward_;
  const PairPart* const part = next(step);
  MT_CHECK(part, "a part of a pass of {} is to be enqueued, and none is left", pass.parts.size());
  if (part->host_waits) host_ = std::max(host_, host_ready(step));
  const bool exchange = part->kind == PairPartKind::exchange;
  const double begin = begin_of(step), end = begin + part->cost;
  (exchange ? exchange_free_ : compute_free_) = end;
  (exchange ? exchange_rest_ : compute_rest_) -= part->cost;
  pass.ready = end;
  pass.rest -= chain(*part);
  ++pass.next;
  const bool all = pass.next == pass.parts.size();
  if (part->layer >= 0 && (all || pass.parts[pass.next].layer != part->layer)) ++pass.ended;
  return {begin, end, exchange};
}

double pair_memory(std::span<const PairStep> order, std::span<const PairPart> forward,
                   std::span<const PairPart> backward, std::span<const LayerMemory> forward_layers,
                   std::span<const LayerMemory> backward_layers) {
  // A layer of the backward: its weight gradients, how much of them is left, and its parts that are
  // not enqueued yet.
  struct Layer {
    double weights = 0, left = 0;
    int64_t parts = 0;
  };
  std::vector<Layer> layers(backward_layers.size());
  for (const PairPart& part : backward) {
    Layer& layer = layers[size_t(part.layer)];
    layer.weights += part.weight_cost, layer.left += part.weight_cost;
    ++layer.parts;
  }
  size_t next_f = 0, next_b = 0, next_w = 0;
  int64_t filled = -1;  // the latest layer of the forward
  double held = 0, most = 0;
  for (const PairStep step : order) {
    if (step == PairStep::forward) {
      const int64_t layer = forward[next_f++].layer;
      if (std::exchange(filled, layer) != layer) held += forward_layers[size_t(layer)].kept;
    } else if (step == PairStep::backward) {
      const int64_t l = backward[next_b++].layer;
      Layer& layer = layers[size_t(l)];
      const LayerMemory& memory = backward_layers[size_t(l)];
      const double waits = layer.weights > 0 ? layer.left / layer.weights : 0;
      if (--layer.parts == 0) held += waits * memory.waiting - memory.kept;
    } else {
      while (backward[next_w].weight_cost == 0) ++next_w;
      const PairPart& part = backward[next_w++];
      Layer& layer = layers[size_t(part.layer)];
      layer.left -= part.weight_cost;
      const double waiting = backward_layers[size_t(part.layer)].waiting;
      if (layer.parts == 0) held -= part.weight_cost / layer.weights * waiting;
    }
    most = std::max(most, held);
  }
  return most;
}

PairTimeline simulate_pair(std::span<const PairStep> order, std::span<const PairPart> forward,
                           std::span<const PairPart> backward) {
  PairClock clock(forward, backward, {});
  PairTimeline t;
  for (const PairStep step : order) {
    const PairStepTime& time = t.steps.emplace_back(clock.enqueue(step));
    (time.exchange ? t.exchanges : t.compute) += time.end - time.begin;
    t.length = std::max(t.length, time.end);
  }
  for (const PairStep step : {PairStep::forward, PairStep::backward, PairStep::weight_gradients})
    MT_CHECK(!clock.has(step), "the order ends before all parts are enqueued");
  return t;
}

}  // namespace mtrain::schedule
