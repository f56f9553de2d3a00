#include "schedule/expert_parts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace mtrain::schedule {

namespace {

bool is_exchange_part(const PairPart& part) { return part.kind == PairPartKind::exchange; }

class PassPlayer {
 public:
  PassPlayer(std::span<const PairPart> pass, int64_t chunks, const PairOptions& options)
      : pass_(pass), chunks_(chunks), delay_wgrad_(options.delay_wgrad) {}

  PairTimeline play() {
    for (size_t i = 0; i < pass_.size();) {
      if (starts_chunks(i)) {
        in_chunks(pass_[i], pass_[i + 1], pass_[i + 2]);
        i += 3;
      } else {
        play_part(pass_[i], i > 0 && is_exchange_part(pass_[i - 1]));
        ++i;
      }
    }
    drain();
    return std::move(t_);
  }

 private:
  bool starts_chunks(size_t i) const {
    return i + 2 < pass_.size() && is_exchange_part(pass_[i]) && !is_exchange_part(pass_[i + 1]) &&
           is_exchange_part(pass_[i + 2]);
  }

  // Adds a step that can begin at `ready`. Returns when it ends.
  double add(bool exchange, double ready, double cost) {
    double& free = exchange ? exchange_free_ : compute_free_;
    const double begin = std::max(free, ready);
    free = begin + cost;
    t_.steps.push_back({begin, free, exchange});
    (exchange ? t_.exchanges : t_.compute) += cost;
    t_.length = std::max(t_.length, free);
    return free;
  }

  // Returns the cost of a part, with its weight gradients unless these are delayed.
  double cost_now(const PairPart& part) {
    if (!delay_wgrad_) return part.cost + part.weight_cost;
    if (part.weight_cost > 0) held_.push_back(part.weight_cost);
    return part.cost;
  }

  void drain() {
    for (const double cost : std::exchange(held_, {})) add(false, 0, cost);
  }

  void play_part(const PairPart& part, bool reads) {
    if (reads) drain();
    const double end = add(is_exchange_part(part), ready_ - part.ahead, cost_now(part));
    ready_ = end - (delay_wgrad_ ? 0 : (1 - part.weights_first) * part.weight_cost);
  }

  // The weight gradients of all chunks are computed after the chunks, during the last return.
  void in_chunks(const PairPart& dispatch, const PairPart& compute, const PairPart& back) {
    drain();
    const double n = double(chunks_), begin = ready_;
    const auto travel = [&](const PairPart& way, double ready) {
      return add(true, ready, way.latency + (way.cost - way.latency) / n);
    };
    double arrived = travel(dispatch, begin);
    if (compute.ahead > 0) add(false, begin, compute.ahead);
    for (int64_t c = 0; c < chunks_; ++c) {
      const double next = c + 1 < chunks_ ? travel(dispatch, begin) : 0;
      ready_ = travel(back, add(false, arrived, (compute.cost - compute.ahead) / n));
      arrived = next;
    }
    add(false, 0, compute.weight_cost);
  }

  const std::span<const PairPart> pass_;
  const int64_t chunks_;
  const bool delay_wgrad_;
  PairTimeline t_;
  std::vector<double> held_;  // the costs of weight gradients
  double compute_free_ = 0, exchange_free_ = 0, ready_ = 0;
};

}  // namespace

PassCosts costs_of_layer(const ExpertStage& s) {
  MT_CHECK(s.layers > 0, "a stage of {} layers", s.layers);
  const double n = double(s.layers), F = s.F / n, I = s.I / n, W = s.W / n;
  const auto part = [&](double share) { return PartCost{share * F, share * I, share * W}; };
  const double exchange = s.exchange * (F + I + W) / 4;
  PassCosts costs{.attention = part(0.5), .mlp = {}, .route = part(0.05), .experts = part(0.4)};
  costs.shared = part(0.05);
  costs.exchange = {.forward = exchange, .backward = exchange};
  return costs;
}

PairTimeline simulate_pass(std::span<const PairPart> pass, int64_t chunks,
                           const PairOptions& options, std::span<const PairPart> estimates) {
  MT_CHECK(chunks >= 1, "a pass in {} chunks", chunks);
  for (const PairPart& part : pass)
    MT_CHECK(part.latency <= part.cost, "{} of an exchange of {} are latency", part.latency,
             part.cost);
  if (chunks > 1) return PassPlayer(pass, chunks, options).play();
  return simulate_pair(pair_order({}, estimates.empty() ? pass : estimates, options), {}, pass);
}

}  // namespace mtrain::schedule
