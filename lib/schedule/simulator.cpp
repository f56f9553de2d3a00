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
        ends_(size_t(s.pp)),
        dp_free_(size_t(s.pp)),
        stages_(size_t(s.stages)),
        paired_(size_t(s.pp)),
        waiting_{table<int64_t>(-1), table<int64_t>(-1)},
        done_{table(kNever), table(kNever)},
        sent_{table(kNever), table(kNever)},
        arrival_{table(kNever), table(kNever)} {
    timeline_.times.resize(size_t(s.pp));
    timeline_.busy.resize(size_t(s.pp));
    timeline_.exchanges.resize(size_t(s.pp));
    timeline_.lanes.resize(size_t(s.pp));
    timeline_.sums.resize(size_t(s.pp));
    for (const ActionList& list : s.ranks)
      for (const Action& a : list)
        if (adds_to_gradients(a.kind)) ++stages_[size_t(a.stage)].gradients_left;
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
      const double end = clock_[size_t(rank)],
                   with_reductions = std::max(end, dp_free_[size_t(rank)]);
      exposed(rank, Lane::dp, with_reductions - end);
      timeline_.step = std::max(timeline_.step, with_reductions);
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
  static bool adds_to_gradients(ActionKind kind) {
    return kind == ActionKind::B || kind == ActionKind::W;
  }

  void exposed(int64_t rank, Lane lane, double time) {
    timeline_.sums[size_t(rank)].exposed[size_t(lane)] += time;
  }
  // Adds a time in which a lane works for the rank's action at `action`.
  void works(int64_t rank, Lane lane, size_t action, double begin, double end, double exposed = 0) {
    if (end <= begin) return;
    timeline_.lanes[size_t(rank)].push_back({lane, action, begin, end, exposed});
    timeline_.sums[size_t(rank)].busy[size_t(lane)] += end - begin;
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

  // Communication inside of an action; a B has that of I and W.
  static InsideCost inside(const StageCost::Inside& c, ActionKind kind) {
    switch (kind) {
      case ActionKind::F: return c.F;
      case ActionKind::B: return {c.I.busy + c.W.busy, c.I.exposed + c.W.exposed};
      case ActionKind::I: return c.I;
      case ActionKind::W: return c.W;
      default: return {};
    }
  }

  // Returns the share of their times that two actions take together.
  double together(const Action& forward, const Action& backward) const {
    const auto own = costs_.pairs.find({forward.stage, backward.stage, backward.kind});
    return own == costs_.pairs.end() ? costs_.together : own->second;
  }

  double delayed(const Action& a) const {
    return a.kind == ActionKind::B ? costs_.delayed_wgrad * cost(a).W : 0;
  }

  MessageCost message_to(int64_t rank, int64_t peer) const {
    const auto own = costs_.messages.find({rank, peer});
    if (own != costs_.messages.end()) return own->second;
    return {.latency = costs_.p2p_latency,
            .transfer = costs_.p2p_transfer,
            .link = costs_.one_link ? -1 : peer};
  }

  // By how much the message of the rank's next action arrives later than others.
  double message_delay(int64_t rank) const {
    const auto& delays = costs_.message_delays;
    return delays.empty() ? 0 : delays[size_t(rank)][next_[size_t(rank)]];
  }

  // Returns the end of the send, and wakes the rank that waits for it.
  double send(int64_t rank, const Action& a) {
    const bool back = a.kind == ActionKind::send_b;
    const MessageCost message = message_to(rank, a.peer);
    double& link_free = link_free_[{rank, message.link}];
    double& channel_free = channel_free_[{rank, a.peer}];
    // Without overlap, adjacent messages start together.
    const double ready =
        costs_.overlap_p2p ? done_[back][at(a.stage, a.micro_batch)] : computed_[size_t(rank)];
    const double begin = std::max({ready, link_free, channel_free});
    link_free = begin + message.transfer;
    const double arrival = channel_free = link_free + message.latency + message_delay(rank);
    const size_t place = at(a.stage + (back ? -1 : 1), a.micro_batch);
    sent_[back][place] = ready;
    arrival_[back][place] = arrival;
    works(rank, Lane::pp_send, next_[size_t(rank)], begin, arrival);
    if (waiting_[back][place] >= 0) ready_.push_back(waiting_[back][place]);
    const bool blocks =
        !costs_.overlap_p2p ||
        (costs_.paired_gradient == PairedGradient::in_order && back && is_paired(rank, a));
    const double clock = clock_[size_t(rank)], end = blocks ? std::max(clock, arrival) : clock;
    exposed(rank, Lane::pp_send, end - clock);
    return end;
  }

  // Returns the end of the receive. Only its transport is exposed: before the message was ready,
  // the rank waited for the sender's computations.
  double receive(int64_t rank, const Action& a) {
    const bool back = a.kind == ActionKind::recv_b;
    const size_t message = at(a.stage, a.micro_batch);
    const double ready = sent_[back][message], arrival = arrival_[back][message],
                 clock = clock_[size_t(rank)];
    works(rank, Lane::pp_receive, next_[size_t(rank)], ready, arrival);
    exposed(rank, Lane::pp_receive, std::max(0.0, arrival - std::max(clock, ready)));
    return std::max(clock, arrival);
  }

  // Begins to gather a stage's weights.
  void unshard(int64_t rank, const Action& a) {
    const std::vector<double>& ends = ends_[size_t(rank)];
    const double host =
        ends.size() > costs_.run_ahead ? ends[ends.size() - 1 - costs_.run_ahead] : 0;
    double& dp_free = dp_free_[size_t(rank)];
    // The memory of the stage that has been freed for it may still be in use.
    const double begin = std::max({host, dp_free, freed_[rank]});
    dp_free = begin + cost(a).gather;
    stages_[size_t(a.stage)].gathered = dp_free;
    works(rank, Lane::dp, next_[size_t(rank)], begin, dp_free);
  }

  // Waits until the weights of the action's stage are gathered.
  void await_weights(int64_t rank, const Action& a) {
    double& clock = clock_[size_t(rank)];
    const double gathered = stages_[size_t(a.stage)].gathered;
    exposed(rank, Lane::dp, std::max(0.0, gathered - clock));
    clock = std::max(clock, gathered);
  }

  // Accounts for an action that has computed until the rank's clock.
  void computed(int64_t rank, const Action& a, size_t index, double begin) {
    Stage& stage = stages_[size_t(a.stage)];
    stage.used = computed_[size_t(rank)];
    ends_[size_t(rank)].push_back(stage.used);
    for (const auto& [lane, costs] : {std::pair{Lane::tp, &cost(a).tp},
                                      {Lane::cp, &cost(a).cp},
                                      {Lane::ep, &cost(a).ep},
                                      {Lane::dp, &cost(a).dp}}) {
      const InsideCost c = inside(*costs, a.kind);
      works(rank, lane, index, begin, begin + c.busy, c.exposed);
      exposed(rank, lane, c.exposed);
    }
    if (!adds_to_gradients(a.kind) || --stage.gradients_left > 0 || cost(a).reduce == 0) return;
    double& dp_free = dp_free_[size_t(rank)];
    const double start = std::max(stage.used, dp_free);
    dp_free = start + cost(a).reduce;
    works(rank, Lane::dp, index, start, dp_free);
  }

  // Runs the rank's next action, or returns false if it has to wait.
  bool step(int64_t rank) {
    const ActionList& list = s_.ranks[size_t(rank)];
    const size_t index = next_[size_t(rank)];
    const Action& a = list[index];
    const bool pair = a.overlaps_next && index + 1 < list.size();
    const Action& b = list[index + (pair ? 1 : 0)];
    if (!can_begin(rank, a) || (pair && !can_begin(rank, b))) return false;
    double& clock = clock_[size_t(rank)];
    if (is_receive(a.kind)) {
      record(rank, receive(rank, a));
    } else if (is_send(a.kind)) {
      record(rank, send(rank, a));
    } else if (!is_compute(a.kind)) {
      if (a.kind == ActionKind::unshard) unshard(rank, a);
      if (a.kind == ActionKind::reshard) freed_[rank] = stages_[size_t(a.stage)].used;
      record(rank, clock);
    } else {
      await_weights(rank, a);
      if (pair) await_weights(rank, b);
      compute(rank, a, pair ? &b : nullptr);
      const ActionTime* times = &timeline_.times[size_t(rank)][index];
      computed(rank, a, index, times[0].begin);
      if (pair) computed(rank, b, index + 1, times[1].begin);
    }
    return true;
  }

  // Runs a computation, or two together.
  void compute(int64_t rank, const Action& a, const Action* b) {
    if (!costs_.parts.empty() && a.kind != ActionKind::W) return run_parts(rank, a, b);
    const double& clock = clock_[size_t(rank)];
    const double share = b ? together(a, *b) : 1, begin = clock;
    record(rank, clock + share * length(a));
    if (b) record(rank, clock + share * length(*b));
    timeline_.busy[size_t(rank)] += clock - begin;
    computed_[size_t(rank)] = clock;
    finish(a, clock - share * delayed(b ? *b : a));
    if (b) finish_paired(rank, a, *b);
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
    timeline_.sums[size_t(rank)].busy[size_t(Lane::ep)] += run.timeline.exchanges;
    exposed(rank, Lane::ep, run.timeline.exposed());
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
    finish(backward, clock_[size_t(rank)] - together(forward, backward) *
                                                (delayed(backward) + tail * length(forward)));
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
  std::vector<double> clock_, computed_;   // computed_: when the last computation ended
  std::vector<std::vector<double>> ends_;  // of each rank's computations so far
  std::vector<double> dp_free_;
  std::map<int64_t, double> freed_;  // by rank: when the stage that was freed last has been used
  struct Stage {
    int64_t gradients_left = 0;  // actions that add to its gradients
    double gathered = 0, used = 0;
  };
  std::vector<Stage> stages_;
  std::vector<Action> paired_;  // the last backward that ran together with a forward
  // Indexed by way (forward, backward), then by stage and micro-batch; for messages by the
  // receiver's stage.
  std::vector<int64_t> waiting_[2];
  std::vector<double> done_[2], sent_[2], arrival_[2];
  std::map<std::pair<int64_t, int64_t>, double> link_free_;     // by sender and link
  std::map<std::pair<int64_t, int64_t>, double> channel_free_;  // by sender and receiver
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
  MT_CHECK(costs.message_delays.empty() || costs.message_delays.size() == s.ranks.size(),
           "delays of {} ranks for a schedule of {}", costs.message_delays.size(), s.ranks.size());
  for (size_t r = 0; r < costs.message_delays.size(); ++r)
    MT_CHECK(costs.message_delays[r].size() == s.ranks[r].size(),
             "delays of {} actions for a list of {}", costs.message_delays[r].size(),
             s.ranks[r].size());
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
