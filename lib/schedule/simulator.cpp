#include "schedule/simulator.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace mtrain::schedule {

namespace {

class Player {
 public:
  Player(const Schedule& s, const ScheduleCosts& costs)
      : s_(s),
        costs_(costs),
        next_(size_t(s.pp)),
        clock_(size_t(s.pp)),
        computed_(size_t(s.pp)),
        paired_(size_t(s.pp)),
        waiting_{table<int64_t>(-1), table<int64_t>(-1)},
        done_{table(kNever), table(kNever)},
        arrival_{table(kNever), table(kNever)} {
    timeline_.times.resize(size_t(s.pp));
    timeline_.busy.resize(size_t(s.pp));
    timeline_.exchanges.resize(size_t(s.pp));
  }

  Timeline play(std::vector<StuckRank>& stuck) {
    for (int64_t rank = s_.pp - 1; rank >= 0; --rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const int64_t rank = ready_.back();
      ready_.pop_back();
      while (next_[size_t(rank)] < s_.ranks[size_t(rank)].size() && step(rank)) {
      }
    }
    for (int64_t rank = 0; rank < s_.pp; ++rank) {
      if (next_[size_t(rank)] < s_.ranks[size_t(rank)].size())
        stuck.push_back({rank, next_[size_t(rank)]});
      timeline_.step = std::max(timeline_.step, clock_[size_t(rank)]);
    }
    return std::move(timeline_);
  }

 private:
  static constexpr double kNever = -1;
  template <class T>
  std::vector<T> table(T value) const {
    return std::vector<T>(size_t(s_.stages * s_.micro_batches), value);
  }
  size_t at(int64_t stage, int64_t micro_batch) const {
    return size_t(stage * s_.micro_batches + micro_batch);
  }

  // Whether everything that `a` needs has been computed or sent.
  bool can_begin(int64_t rank, const Action& a) {
    if (is_receive(a.kind)) {
      const size_t way = a.kind == ActionKind::recv_b, message = at(a.stage, a.micro_batch);
      if (arrival_[way][message] != kNever) return true;
      waiting_[way][message] = rank;
      return false;
    }
    const bool forward = a.kind == ActionKind::F;
    const int64_t before = a.stage + (forward ? -1 : 1);
    if ((forward || gives_gradient(a.kind)) && before >= 0 && before < s_.stages) {
      const bool here = s_.rank_of(before) == rank;
      const auto& from = here ? done_[!forward][at(before, a.micro_batch)]
                              : arrival_[!forward][at(a.stage, a.micro_batch)];
      return from != kNever;
    }
    return true;
  }

  const StageCost& cost(const Action& a) const {
    const auto& table = costs_.stages;
    return table[table.size() == 1 ? 0 : size_t(a.stage)];
  }

  double length(const Action& a) const {
    const StageCost& c = cost(a);
    switch (a.kind) {
      case ActionKind::F: return c.F;
      case ActionKind::B: return c.I + c.W;
      case ActionKind::I: return c.I;
      case ActionKind::W: return c.W;
      default: return 0;
    }
  }

  double delayed(const Action& a) const {
    return a.kind == ActionKind::B ? costs_.delayed_wgrad * cost(a).W : 0;
  }

  // Returns the end of the send, and wakes the rank that waits for it.
  double send(int64_t rank, const Action& a) {
    const bool back = a.kind == ActionKind::send_b;
    double& link_free = link_free_[{rank, costs_.one_link ? -1 : a.peer}];
    // Without overlap, adjacent messages start together.
    const double ready =
        costs_.overlap_p2p ? done_[back][at(a.stage, a.micro_batch)] : computed_[size_t(rank)];
    const double begin = std::max(ready, link_free);
    link_free = begin + costs_.p2p_transfer;
    const double arrival = link_free + costs_.p2p_latency;
    const size_t message = at(a.stage + (back ? -1 : 1), a.micro_batch);
    arrival_[back][message] = arrival;
    if (waiting_[back][message] >= 0) ready_.push_back(waiting_[back][message]);
    const bool blocks =
        !costs_.overlap_p2p ||
        (costs_.paired_gradient == PairedGradient::in_order && back && is_paired(rank, a));
    return blocks ? std::max(clock_[size_t(rank)], arrival) : clock_[size_t(rank)];
  }

  // Runs the rank's next action, or returns false if it has to wait.
  bool step(int64_t rank) {
    const ActionList& list = s_.ranks[size_t(rank)];
    const Action& a = list[next_[size_t(rank)]];
    const bool pair = a.overlaps_next && next_[size_t(rank)] + 1 < list.size();
    const Action& b = list[next_[size_t(rank)] + (pair ? 1 : 0)];
    if (!can_begin(rank, a) || (pair && !can_begin(rank, b))) return false;
    double& clock = clock_[size_t(rank)];
    if (is_receive(a.kind)) {
      const size_t message = at(a.stage, a.micro_batch);
      record(rank, std::max(clock, arrival_[a.kind == ActionKind::recv_b][message]));
    } else if (is_send(a.kind)) {
      record(rank, send(rank, a));
    } else if (!costs_.parts.empty() && a.kind != ActionKind::W) {
      run_parts(rank, a, pair ? &b : nullptr);
    } else {
      const double share = pair ? costs_.together : 1, begin = clock;
      record(rank, clock + share * length(a));
      if (pair) record(rank, clock + share * length(b));
      timeline_.busy[size_t(rank)] += clock - begin;
      computed_[size_t(rank)] = clock;
      finish(a, clock - share * delayed(pair ? b : a));
      if (pair) finish_paired(rank, a, b);
    }
    return true;
  }

  // Runs one action by its parts, or two actions together.
  void run_parts(int64_t rank, const Action& a, const Action* backward) {
    const double begin = clock_[size_t(rank)];
    const PartsRun& run = parts_run(a, backward);
    for (size_t i = 0; i < run.timeline.steps.size(); ++i) {
      const PairStepTime& t = run.timeline.steps[i];
      if (t.exchange)
        timeline_.exchanges[size_t(rank)].push_back(
            {next_[size_t(rank)] + (backward && run.order[i] == PairStep::backward),
             begin + t.begin, begin + t.end});
    }
    Exposure& exposure = backward ? timeline_.paired : timeline_.unpaired;
    exposure.exchanges += run.timeline.exchanges;
    exposure.exposed += run.timeline.exposed();
    timeline_.busy[size_t(rank)] += run.timeline.compute;
    const double end = begin + run.timeline.length;
    record(rank, backward ? begin + run.forward_compute : end);
    if (backward) record(rank, end);
    computed_[size_t(rank)] = end;
    finish(a, backward && costs_.overlap_p2p ? begin + run.forward_end : end);
    if (!backward) return;
    const bool at_once = costs_.paired_gradient == PairedGradient::at_once;
    finish(*backward, at_once ? begin + run.backward_end : end);
    paired_[size_t(rank)] = *backward;
  }

  // The times of one action or of two together, from their begin.
  struct PartsRun {
    std::vector<PairStep> order;  // of two
    PairTimeline timeline;
    double forward_compute = 0;  // of two: how long the forward computes
    // Of two: when their results are ready.
    double forward_end = 0, backward_end = 0;
  };

  static std::vector<PairPart> pass(const std::vector<StageParts>& stages, const Action& a) {
    const StageParts& parts = stages[stages.size() == 1 ? 0 : size_t(a.stage)];
    std::vector<PairPart> list = a.kind == ActionKind::F ? parts.forward : parts.backward;
    if (a.kind == ActionKind::I)
      for (PairPart& part : list) part.weight_cost = 0;
    return list;
  }
  std::vector<PairPart> estimated(const Action& a) const {
    return pass(costs_.estimates.empty() ? costs_.parts : costs_.estimates, a);
  }

  const PartsRun& parts_run(const Action& a, const Action* b) {
    const auto stage = [&](const Action& x) { return costs_.parts.size() == 1 ? 0 : x.stage; };
    const auto [at, is_new] =
        runs_.try_emplace({a.kind, stage(a), b ? int(b->kind) : -1, b ? stage(*b) : -1});
    PartsRun& run = at->second;
    if (!is_new) return run;
    const std::vector<PairPart> first = pass(costs_.parts, a);
    if (!b) {
      run.timeline = simulate_pass(first, costs_.exchange_chunks, costs_.pair, estimated(a));
      return run;
    }
    const std::vector<PairPart> second = pass(costs_.parts, *b);
    run.order = costs_.pairs_take_turns
                    ? alternating_pair_order(estimated(a), estimated(*b), costs_.pair)
                    : pair_order(estimated(a), estimated(*b), costs_.pair);
    run.timeline = simulate_pair(run.order, first, second);
    for (size_t i = 0; i < run.order.size(); ++i) {
      const PairStepTime& t = run.timeline.steps[i];
      if (run.order[i] == PairStep::forward) run.forward_end = t.end;
      if (run.order[i] == PairStep::forward && !t.exchange) run.forward_compute += t.end - t.begin;
      // Without delayed weight gradients the gradient is sent after them.
      if (run.order[i] != PairStep::forward &&
          (run.order[i] == PairStep::backward || !costs_.pair.delay_wgrad))
        run.backward_end = t.end;
    }
    return run;
  }

  void finish_paired(int64_t rank, const Action& forward, const Action& backward) {
    const double tail = costs_.paired_gradient == PairedGradient::at_once ? costs_.forward_tail : 0;
    finish(backward,
           clock_[size_t(rank)] - costs_.together * (delayed(backward) + tail * length(forward)));
    paired_[size_t(rank)] = backward;
  }

  // Whether the gradient is that of the last backward that ran together with a forward.
  bool is_paired(int64_t rank, const Action& send) const {
    const Action& b = paired_[size_t(rank)];
    return gives_gradient(b.kind) && b.stage == send.stage && b.micro_batch == send.micro_batch;
  }

  void record(int64_t rank, double end) {
    timeline_.times[size_t(rank)].push_back({clock_[size_t(rank)], end});
    clock_[size_t(rank)] = end;
    ++next_[size_t(rank)];
  }

  void finish(const Action& a, double when) {
    if (a.kind == ActionKind::F) done_[0][at(a.stage, a.micro_batch)] = when;
    if (gives_gradient(a.kind)) done_[1][at(a.stage, a.micro_batch)] = when;
  }

  const Schedule& s_;
  const ScheduleCosts& costs_;
  Timeline timeline_;
  std::vector<int64_t> ready_;
  std::vector<size_t> next_;
  std::vector<double> clock_, computed_;  // computed_: when the last computation ended
  std::vector<Action> paired_;            // the last backward that ran together with a forward
  // Indexed by way (forward, backward), then by stage and micro-batch; for messages by the
  // receiver's stage.
  std::vector<int64_t> waiting_[2];
  std::vector<double> done_[2], arrival_[2];
  std::map<std::pair<int64_t, int64_t>, double> link_free_;
  std::map<std::tuple<ActionKind, int64_t, int, int64_t>, PartsRun> runs_;
};

}  // namespace

double Timeline::bubble() const {
  double computing = 0;
  for (const double b : busy) computing += b;
  return step > 0 ? 1 - computing / (step * double(busy.size())) : 0;
}

Timeline play(const Schedule& s, const ScheduleCosts& costs, std::vector<StuckRank>& stuck) {
  MT_CHECK(costs.stages.size() == 1 || int64_t(costs.stages.size()) == s.stages,
           "costs of {} stages for a schedule of {}", costs.stages.size(), s.stages);
  MT_CHECK(costs.parts.size() <= 1 || int64_t(costs.parts.size()) == s.stages,
           "parts of {} stages for a schedule of {}", costs.parts.size(), s.stages);
  MT_CHECK(costs.estimates.empty() || costs.estimates.size() == costs.parts.size(),
           "parts of {} stages, ordered by those of {}", costs.parts.size(),
           costs.estimates.size());
  return Player(s, costs).play(stuck);
}

Timeline simulate(const Schedule& s, const ScheduleCosts& costs) {
  std::vector<StuckRank> stuck;
  Timeline timeline = play(s, costs, stuck);
  MT_CHECK(stuck.empty(), "rank {} of {} waits forever at action {}", stuck[0].rank, s.name,
           stuck[0].action);
  return timeline;
}

}  // namespace mtrain::schedule
