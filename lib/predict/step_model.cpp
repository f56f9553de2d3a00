#include "predict/step_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "plan/executed_schedule.h"
#include "predict/alike_stages.h"
#include "predict/contention.h"
#include "predict/group_links.h"
#include "predict/message_delays.h"
#include "predict/recorded_step.h"
#include "predict/shorter_step.h"
#include "predict/stage_sequences.h"

namespace mtrain::predict {

using device::StreamKind;
using schedule::ActionKind;

namespace {

// A pipeline rank of a plan; its other coordinates are 0.
int rank_of_stage(const RunPlan& plan, int64_t pp_rank) {
  return int(pp_rank * plan.mesh.stride(mesh::Axis::pp));
}

// The costs of a stage's actions: the means over the micro-batches of a step.
struct StageTimes {
  ReplayTimes F, B, I, W;  // B: I and W together; F: of all forwards but the first
  ReplayTimes first;       // what the first forward takes more than the others
  ReplayTimes gather;
  double reduce = 0;   // how long the gradients take longer than the computations before them
  double delayed = 0;  // share of W

  // Adds a multiple of the difference to the times of a stage with more layers.
  void extrapolate(const StageTimes& more, double times) {
    first = extrapolated(first, more.first, times);
    for (const auto member :
         {&StageTimes::F, &StageTimes::B, &StageTimes::I, &StageTimes::W, &StageTimes::gather}) {
      (this->*member) = extrapolated(this->*member, more.*member, times);
      (this->*member).make_positive();
    }
    reduce = std::max(0.0, reduce + times * (more.reduce - reduce));
  }
  static ReplayTimes extrapolated(ReplayTimes fewer, const ReplayTimes& more, double times) {
    ReplayTimes difference = more;
    difference.add(fewer, -1);
    return fewer.add(difference, times);
  }
};

schedule::InsideCost inside(const ReplayTimes& t, std::initializer_list<StreamKind> kinds) {
  schedule::InsideCost cost;
  for (const StreamKind kind : kinds) {
    cost.busy += t.busy[size_t(kind)];
    cost.exposed += t.exposed[size_t(kind)];
  }
  return cost;
}

schedule::StageCost::Inside inside(const StageTimes& t, std::initializer_list<StreamKind> kinds) {
  return {.F = inside(t.F, kinds), .I = inside(t.I, kinds), .W = inside(t.W, kinds)};
}

schedule::StageCost cost_of(const StageTimes& t) {
  return {.F = t.F.seconds,
          .I = t.I.seconds,
          .W = t.W.seconds,
          .gather = t.gather.seconds,
          .reduce = t.reduce,
          .tp = inside(t, {StreamKind::tp}),
          .cp = inside(t, {StreamKind::cp}),
          .ep = inside(t, {StreamKind::ep, StreamKind::ep_counts}),
          .dp = inside(t, {StreamKind::dp_grad, StreamKind::dp_param})};
}

const ReplayTimes& of_action(const StageTimes& t, ActionKind kind) {
  switch (kind) {
    case ActionKind::F: return t.F;
    case ActionKind::I: return t.I;
    case ActionKind::W: return t.W;
    default: return t.B;
  }
}

double computed(const ReplayTimes& t) {
  return std::accumulate(t.compute.begin(), t.compute.end(), 0.0);
}

// What an action waits for inside of it.
double exposed_inside(const schedule::StageCost::Inside& c, ActionKind kind) {
  switch (kind) {
    case ActionKind::F: return c.F.exposed;
    case ActionKind::I: return c.I.exposed;
    case ActionKind::W: return c.W.exposed;
    default: return c.I.exposed + c.W.exposed;
  }
}

// Returns the lists of several flushes, one after the other. Gradients are reduced in the last one.
schedule::Schedule repeated(schedule::Schedule flush, int64_t times) {
  for (schedule::ActionList& list : flush.ranks) {
    const schedule::ActionList once = list;
    for (int64_t i = 1; i < times; ++i)
      for (schedule::Action a : once) {
        if (is_compute(a.kind) || is_send(a.kind) || is_receive(a.kind))
          a.micro_batch += i * flush.micro_batches;
        list.push_back(a);
      }
  }
  flush.micro_batches *= times;
  return flush;
}

using PairTimes = std::map<schedule::PairKey, ReplayTimes>;

// The pairs of passes that run together, each kind once.
std::set<schedule::PairKey> pairs_of(const schedule::Schedule& schedule) {
  std::set<schedule::PairKey> pairs;
  for (const schedule::ActionList& list : schedule.ranks)
    for (size_t i = 0; i + 1 < list.size(); ++i)
      if (list[i].overlaps_next) pairs.insert({list[i].stage, list[i + 1].stage, list[i + 1].kind});
  return pairs;
}

}  // namespace

class StepModel::Recording {
 public:
  Recording(const RunPlan& plan, const plan::Cluster& cluster, RecordedParts parts)
      : plan_(plan), cluster_(cluster) {
    if (const std::string obstacle = recording_obstacle(plan); !obstacle.empty())
      throw UserError("the step of this plan cannot be predicted: " + obstacle);
    GroupLinks links(plan_, cluster_);
    const bool all = parts == RecordedParts::all;
    const std::optional<FewLayers> few = all ? std::nullopt : with_few_layers(plan);
    periods_ = few ? few->periods : std::vector<double>(size_t(plan.layout.stages));
    const auto record = [&](const RunPlan& p) {
      plan.layout.pp == 1 ? record_whole(p, all, links) : record_pipeline(p, all, links);
    };
    record(few ? few->fewer : plan);
    if (few) record(few->more);
    if (plan.layout.pp == 1) return;
    schedule_ = repeated(plan::executed_schedule(plan_), plan_.layout.flushes);
    for (const schedule::ActionList& list : schedule_.ranks)
      for (const schedule::Action& a : list)
        if (is_send(a.kind)) {
          const std::pair hop{int64_t(&list - schedule_.ranks.data()), a.peer};
          if (!hops_.contains(hop)) hops_.emplace(hop, links.between(hop.first, hop.second));
        }
  }

  PlayedPipeline play(const LaunchCosts& costs) const {
    MT_CHECK(plan_.layout.pp > 1, "a picture of one stage");
    const PlayedTimes p = played(prices_of(costs), costs);
    const auto first_gather = [](const StageTimes& t) { return t.first.seconds; };
    return {.schedule = schedule_,
            .timeline = p.timeline,
            .before = std::ranges::max(p.times.before, {}, &ReplayTimes::seconds).seconds,
            .first_gather = first_gather(std::ranges::max(p.times.stages, {}, first_gather))};
  }

  Prediction price(const LaunchCosts& costs) const {
    const LaunchPrices prices = prices_of(costs);
    Prediction p = plan_.layout.pp == 1 ? whole(prices) : pipeline(prices, costs);
    p.step_s = p.times.seconds + p.bubble_s;
    const double tokens = double(plan_.train.global_batch_size * plan_.sample_length);
    p.tokens_per_s = tokens / p.step_s;
    p.mfu = p.tokens_per_s * plan_.token_cost.flops(plan_.sample_length) /
            (peak_flops(plan_, cluster_) * double(plan_.layout.world));
    for (const plan::MemoryEstimate& m : plan_.memory) p.memory.push_back(m.total());
    p.band = band_of(plan_, cluster_, std::min(1.0, p.times.unknown / p.step_s));
    return p;
  }

  size_t recorded_stages() const {
    size_t count = 0;
    for (const RecordedPipeline& recorded : pipelines_)
      for (const PipelineRankSequences& rank : recorded.ranks) count += rank.stages.size();
    return count;
  }

 private:
  // A step without a pipeline: with few micro-batches, and with more of them unless further_ is 0.
  struct WholeStep {
    LaunchSequence few, more;
  };

  void record_whole(const RunPlan& plan, bool all, GroupLinks& links) {
    const FewMicroBatches few = few_micro_batches(plan);
    further_ = all ? 0 : further_groups(plan, few);
    const auto record = [&](const RunPlan& p) {
      return sequence_of(record_step(p, 0).records, list_, links);
    };
    if (further_ == 0)
      steps_.push_back({record(plan), {}});
    else
      steps_.push_back({record(with_micro_batches(plan, few.few)),
                        record(with_micro_batches(plan, few.few + few.step))});
  }

  Prediction whole(const LaunchPrices& prices) const {
    const auto times = [&](const WholeStep& step) {
      const auto of = [&](const LaunchSequence& s) {
        return replay(s, list_, prices, ReplayEnd::all_streams);
      };
      if (further_ == 0) return of(step.few);
      return StageTimes::extrapolated(of(step.few), of(step.more), double(further_));
    };
    Prediction p;
    p.times = times(steps_[0]);
    if (steps_.size() > 1)
      p.times = StageTimes::extrapolated(p.times, times(steps_[1]), periods_[0]);
    p.times.make_positive();
    return p;
  }

  struct RecordedPipeline {
    std::vector<PipelineRankSequences> ranks;  // of different keys
    std::vector<size_t> of_rank;               // [pp rank]: its place in `ranks`
    // [stage]: which stage of the rank in `ranks` stands for it
    std::vector<int64_t> of_stage;
    int64_t micro_batches = 0;
  };

  void record_pipeline(RunPlan plan, bool all, GroupLinks& links) {
    plan.layout.flushes = 1;
    const std::optional<RunPlan> three = all ? std::nullopt : with_three_micro_batches(plan);
    const FewMicroBatches few = few_micro_batches(plan);
    if (three)
      plan = *three;
    else if (!all && further_groups(plan, few) > 0)
      plan = with_micro_batches(std::move(plan), few.few);
    else
      plan = with_micro_batches(plan, plan.layout.micro_batches);  // of one flush
    const schedule::Schedule lists = plan::executed_schedule(plan);
    AlikeStages alike = alike_stages(plan, lists, all);
    RecordedPipeline& recorded = pipelines_.emplace_back();
    recorded.micro_batches = plan.layout.micro_batches;
    for (const RankToRecord& rank : alike.ranks) {
      recorded.ranks.push_back(sort_by_action(
          record_step(plan, rank_of_stage(plan, rank.pp_rank), rank.skipped).records,
          lists.ranks[size_t(rank.pp_rank)], plan.layout.micro_batches, list_, links));
      std::erase_if(recorded.ranks.back().stages,
                    [&](const auto& of_stage) { return !rank.stages.contains(of_stage.first); });
    }
    recorded.of_rank = std::move(alike.of_rank);
    recorded.of_stage = std::move(alike.of_stage);
  }

  ReplayTimes times_of(const LaunchSequence& s, const LaunchPrices& prices) const {
    return replay(s, list_, prices, ReplayEnd::compute);
  }
  // Returns the mean over the micro-batches of a step.
  ReplayTimes times_of(const MicroBatchSequences& s, const LaunchPrices& prices) const {
    if (s.empty()) return {};
    const auto all = double(plan_.layout.step_micro_batches());
    ReplayTimes t = times_of(s.last, prices);
    if (all < 2) return t;
    t.add(times_of(s.first, prices));
    if (all > 2) t.add(times_of(s.middle, prices), all - 2);
    ReplayTimes mean;
    return mean.add(t, 1 / all);
  }

  StageTimes times_of(const StageSequences& s, const LaunchPrices& prices) const {
    const auto of = [&](ActionKind kind) -> const MicroBatchSequences& {
      return s.actions[size_t(kind)];
    };
    const MicroBatchSequences& forwards = of(ActionKind::F);
    StageTimes t{.F = times_of(forwards.middle, prices)};
    t.first = times_of(forwards.first, prices);
    t.first.add(t.F, -1);
    if (t.first.seconds < 0) t.first = {};
    if (!of(ActionKind::I).empty()) {
      t.I = times_of(of(ActionKind::I), prices);
      t.W = times_of(of(ActionKind::W), prices);
    } else {
      t.I = times_of(of(ActionKind::B), prices);
      t.W = times_of(s.delayed, prices);
      t.delayed = s.delayed.empty() ? 0 : 1;
    }
    t.B = t.I;
    t.B.add(t.W);
    t.reduce = replay(s.last_gradients, list_, prices, ReplayEnd::all_streams).seconds -
               times_of(s.last_gradients, prices).seconds;
    t.gather = replay(s.gather, list_, prices, ReplayEnd::all_streams);
    return t;
  }

  // What a recorded pipeline takes.
  struct PipelineTimes {
    std::vector<StageTimes> stages;
    std::vector<ReplayTimes> before, after;  // the actions, by place in RecordedPipeline::ranks
    PairTimes pairs;

    // Returns the times of two actions that run together.
    ReplayTimes of_pair(const schedule::PairKey& key) const {
      if (const auto known = pairs.find(key); known != pairs.end()) return known->second;
      return alone(key);
    }
    // Returns their times if one follows the other.
    ReplayTimes alone(const schedule::PairKey& key) const {
      const auto& [forward, backward, kind] = key;
      ReplayTimes t = stages[size_t(forward)].F;
      return t.add(of_action(stages[size_t(backward)], kind));
    }
  };

  // Returns the times of the pairs that the plan's lists have.
  PairTimes times_of_pairs(const RecordedPipeline& recorded, const LaunchPrices& prices) const {
    PairTimes recorded_times, times;
    for (const PipelineRankSequences& rank : recorded.ranks)
      for (const PairSequence& pair : rank.pairs)
        recorded_times.emplace(pair.key, times_of(pair.sequence, prices));
    if (recorded_times.empty()) return times;
    for (const schedule::PairKey& key : pairs_of(schedule_)) {
      const auto& [forward, backward, kind] = key;
      const auto known = recorded_times.find(
          {recorded.of_stage[size_t(forward)], recorded.of_stage[size_t(backward)], kind});
      if (known != recorded_times.end()) times.emplace(key, known->second);
    }
    return times;
  }

  PipelineTimes times_of(const RecordedPipeline& recorded, const LaunchPrices& prices) const {
    PipelineTimes t;
    std::map<int64_t, StageTimes> known;
    for (const PipelineRankSequences& rank : recorded.ranks) {
      for (const auto& [stage, sequences] : rank.stages)
        known.emplace(stage, times_of(sequences, prices));
      t.before.push_back(replay(rank.before, list_, prices, ReplayEnd::all_streams));
      // The micro-batches that were not recorded also upload their tokens.
      for (const uint32_t upload : rank.uploads) {
        ReplayTimes& before = t.before.back();
        const auto more = double(plan_.layout.step_micro_batches() - recorded.micro_batches);
        before.compute[size_t(LaunchClass::memory)] += more * prices.seconds[upload];
        before.gaps += more * prices.gap;
        before.seconds += more * (prices.seconds[upload] + prices.gap);
      }
      t.after.push_back(replay(rank.after, list_, prices, ReplayEnd::all_streams));
    }
    for (const int64_t stage : recorded.of_stage) t.stages.push_back(known.at(stage));
    t.pairs = times_of_pairs(recorded, prices);
    return t;
  }

  // Returns the times of the plan: those with few layers, and the layers that follow.
  PipelineTimes all_times(const LaunchPrices& prices) const {
    PipelineTimes t = times_of(pipelines_[0], prices);
    if (pipelines_.size() == 1) return t;
    const PipelineTimes more = times_of(pipelines_[1], prices);
    for (auto& [key, pair] : t.pairs) {
      const ReplayTimes& longer = more.pairs.at(key);
      pair = StageTimes::extrapolated(pair, longer, periods_of_pair(key, t, more));
      pair.make_positive();
    }
    for (size_t stage = 0; stage < t.stages.size(); ++stage)
      t.stages[stage].extrapolate(more.stages[stage], periods_[stage]);
    // The mean over the stages whose layers were removed.
    const auto cut = double(std::ranges::count_if(periods_, [](double p) { return p > 0; }));
    const double mean = std::accumulate(periods_.begin(), periods_.end(), 0.0) / cut;
    // Ranks that are alike with fewer layers may differ with more, and the other way round.
    for (const auto part : {&PipelineTimes::before, &PipelineTimes::after})
      for (size_t place = 0; place < t.before.size(); ++place) {
        const auto rank = std::ranges::find(pipelines_[0].of_rank, place);
        const size_t longer = pipelines_[1].of_rank[size_t(rank - pipelines_[0].of_rank.begin())];
        (t.*part)[place] = StageTimes::extrapolated((t.*part)[place], (more.*part)[longer], mean);
      }
    return t;
  }

  // The layers of the two stages may follow a different number of times; each counts by the time
  // that a period adds to it.
  double periods_of_pair(const schedule::PairKey& key, const PipelineTimes& t,
                         const PipelineTimes& more) const {
    const auto& [forward, backward, kind] = key;
    const auto f = size_t(forward), b = size_t(backward);
    const double of_f = more.stages[f].F.seconds - t.stages[f].F.seconds,
                 of_b =
                     of_action(more.stages[b], kind).seconds - of_action(t.stages[b], kind).seconds;
    if (of_f <= 0 || of_b <= 0) return (periods_[f] + periods_[b]) / 2;
    return (periods_[f] * of_f + periods_[b] * of_b) / (of_f + of_b);
  }

  Prediction pipeline(const LaunchPrices& prices, const LaunchCosts& costs) const {
    const PlayedTimes played_times = played(prices, costs);
    const PipelineTimes& all = played_times.times;
    const std::vector<StageTimes>& stages = all.stages;
    const ReplayTimes first =
        std::ranges::max(stages, {}, [](const StageTimes& t) { return t.first.seconds; }).first;
    const ReplayTimes before = std::ranges::max(all.before, {}, &ReplayTimes::seconds),
                      after = std::ranges::max(all.after, {}, &ReplayTimes::seconds);
    Prediction p;
    p.times = times_of_rank(played_times);
    p.bubble_s = std::max(0.0, played_times.timeline.step - p.times.seconds);
    p.times.add(before).add(after).add(first);
    p.times.make_positive();
    return p;
  }

  // The lists, played with the times of their actions.
  struct PlayedTimes {
    PipelineTimes times;
    schedule::ScheduleCosts costs;
    schedule::Timeline timeline;
    std::set<std::pair<int64_t, int64_t>> unknown_hops;  // whose messages' costs are extrapolated
  };

  PlayedTimes played(const LaunchPrices& prices, const LaunchCosts& costs) const {
    PlayedTimes p{.times = all_times(prices)};
    for (const auto& [hop, link] : hops_)
      if (!message_cost(hop, link, costs, true).known) p.unknown_hops.insert(hop);
    p.costs = schedule_costs(p.times, costs);
    p.timeline = schedule::simulate(schedule_, p.costs);
    const auto slows = [&](StreamKind kind) { return prices.slowdown[size_t(kind)] > 0; };
    const bool slower = slows(StreamKind::pp_send) || slows(StreamKind::pp_recv) ||
                        slows(StreamKind::dp_grad) || slows(StreamKind::dp_param);
    const double more = prices.beside_compute[size_t(StreamKind::pp_send)];
    if (!slower && more == 0) return p;
    // The first time the lists are played shows which computations run beside communication.
    std::vector<std::vector<double>> delays;
    if (more > 0)
      delays =
          message_delays(schedule_, p.timeline, messages(costs), computing_shares(p.times), more);
    if (slower) {
      if (more > 0) {  // messages slow down what they run beside with their delays
        p.costs.message_delays = delays;
        p.timeline = schedule::simulate(schedule_, p.costs);
      }
      slow_down(p, prices);
    }
    p.costs = schedule_costs(p.times, costs);
    p.costs.message_delays = std::move(delays);
    p.timeline = schedule::simulate(schedule_, p.costs);
    return p;
  }

  std::map<std::pair<int64_t, int64_t>, MessageWork> messages(const LaunchCosts& costs) const {
    std::map<std::pair<int64_t, int64_t>, MessageWork> all;
    for (const auto& [hop, link] : hops_)
      all[hop] = {.work_s = message_cost(hop, link, costs, true).work_s,
                  .after_s = costs.together(plan_.layout).wake_s};
    return all;
  }

  // Returns the share of each action in which it computes, by rank.
  std::vector<std::vector<double>> computing_shares(const PipelineTimes& times) const {
    const auto share = [](const ReplayTimes& t) {
      return t.seconds > 0 ? computed(t) / t.seconds : 0;
    };
    std::vector<std::vector<double>> shares;
    for (const schedule::ActionList& list : schedule_.ranks) {
      std::vector<double>& of_rank = shares.emplace_back(list.size());
      for (size_t i = 0; i < list.size(); ++i) {
        const schedule::Action& a = list[i];
        if (!is_compute(a.kind)) continue;
        if (a.overlaps_next && i + 1 < list.size()) {
          const schedule::Action& b = list[i + 1];
          of_rank[i] = of_rank[i + 1] = share(times.of_pair({a.stage, b.stage, b.kind}));
          ++i;
        } else {
          of_rank[i] = share(of_action(times.stages[size_t(a.stage)], a.kind));
        }
      }
    }
    return shares;
  }

  // Communication of a rank that is not part of its computations: messages, gathers of stages, and
  // reductions after a stage's last backward; in the order in which they begin.
  struct Outside {
    StreamKind kind;
    double begin, end;
  };
  // `delays` are those of the rank's receives; empty: none.
  std::vector<Outside> outside(const PlayedTimes& p, size_t rank,
                               const std::vector<double>& delays) const {
    std::vector<Outside> all;
    for (const schedule::LaneTime& t : p.timeline.lanes[rank]) {
      const schedule::Action& a = schedule_.ranks[rank][t.action];
      switch (t.lane) {
        case schedule::Lane::pp_send: all.push_back({StreamKind::pp_send, t.begin, t.end}); break;
        case schedule::Lane::pp_receive: {
          // Before its transfer, the message may wait for others on the sender's link.
          const schedule::MessageCost& m = p.costs.messages.at({a.peer, int64_t(rank)});
          const double delay = delays.empty() ? 0 : delays[t.action];
          const double begin = std::max(t.begin, t.end - m.latency - m.transfer - delay);
          all.push_back({StreamKind::pp_recv, begin, t.end});
          break;
        }
        case schedule::Lane::dp:
          if (a.kind == ActionKind::unshard)
            all.push_back({StreamKind::dp_param, t.begin, t.end});
          else if (t.begin >= p.timeline.times[rank][t.action].end)
            all.push_back({StreamKind::dp_grad, t.begin, t.end});
          break;
        default: break;
      }
    }
    std::ranges::sort(all, {}, &Outside::begin);
    return all;
  }

  // Makes each action longer by what communication outside of it slows it down on average.
  void slow_down(PlayedTimes& p, const LaunchPrices& prices) const {
    struct Sum {
      double seconds = 0;
      int64_t count = 0;
      void add(double s) { seconds += s, ++count; }
      double mean() const { return count > 0 ? seconds / double(count) : 0; }
    };
    std::map<std::pair<int64_t, ActionKind>, Sum> sums;
    std::map<schedule::PairKey, Sum> pairs;
    const std::vector<std::vector<double>> delays =
        delays_of_receives(schedule_, p.costs.message_delays);
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const schedule::ActionList& list = schedule_.ranks[rank];
      const std::vector<schedule::ActionTime>& times = p.timeline.times[rank];
      const std::vector<Outside> all =
          outside(p, rank, delays.empty() ? std::vector<double>() : delays[rank]);
      auto next = all.begin();
      Contention contention(prices.slowdown);
      // The part of an action that it computes may be slowed down; in the rest it waits.
      const auto longer = [&](double begin, double end, const ReplayTimes& t) {
        if (t.seconds <= 0) return 0.0;
        for (; next != all.end() && next->begin < begin + 2 * (end - begin); ++next)
          contention.runs(next->kind, next->begin, next->end);
        return (contention.end_of(begin, end - begin) - end) * computed(t) / t.seconds;
      };
      for (size_t i = 0; i < list.size(); ++i) {
        const schedule::Action& a = list[i];
        if (!is_compute(a.kind)) continue;
        const double begin = times[i].begin;
        const StageTimes& stage = p.times.stages[size_t(a.stage)];
        if (a.overlaps_next && i + 1 < list.size()) {
          const schedule::Action& b = list[++i];
          const schedule::PairKey key{a.stage, b.stage, b.kind};
          pairs[key].add(longer(begin, times[i].end, p.times.of_pair(key)));
          continue;
        }
        const double more = longer(begin, times[i].end, of_action(stage, a.kind));
        if (a.kind == ActionKind::B) {
          const double of_I = stage.B.seconds > 0 ? stage.I.seconds / stage.B.seconds : 1;
          sums[{a.stage, ActionKind::I}].add(more * of_I);
          sums[{a.stage, ActionKind::W}].add(more * (1 - of_I));
        } else {
          sums[{a.stage, a.kind}].add(more);
        }
      }
    }
    for (auto& [key, times] : p.times.pairs) times.slow_down(pairs[key].mean());
    for (size_t s = 0; s < p.times.stages.size(); ++s) {
      StageTimes& stage = p.times.stages[s];
      const auto mean = [&](ActionKind kind) { return sums[{int64_t(s), kind}].mean(); };
      stage.F.slow_down(mean(ActionKind::F));
      stage.I.slow_down(mean(ActionKind::I));
      stage.W.slow_down(mean(ActionKind::W));
      stage.B = stage.I;
      stage.B.add(stage.W);
    }
  }

  schedule::ScheduleCosts schedule_costs(const PipelineTimes& all, const LaunchCosts& costs) const {
    schedule::ScheduleCosts c = plan::costs_in_order(plan_.pipeline);
    c.stages.clear();
    for (const StageTimes& t : all.stages) {
      c.stages.push_back(cost_of(t));
      c.delayed_wgrad = std::max(c.delayed_wgrad, t.delayed);
    }
    for (const auto& [key, pair] : all.pairs)
      if (const double alone = all.alone(key).seconds; alone > 0)
        c.pairs.emplace(key, pair.seconds / alone);
    for (const auto& [hop, link] : hops_) {
      // A message without bytes takes the latency.
      const LaunchCost message = message_cost(hop, link, costs, true);
      const double latency =
          std::min(message.seconds, message_cost(hop, link, costs, false).seconds);
      c.messages[hop] = {.latency = latency,
                         .transfer = message.seconds - latency,
                         .link = link_of_messages(link)};
    }
    return c;
  }

  // A rank has a link in its domain, and another one to the network. An emulated link carries all.
  int64_t link_of_messages(const plan::GroupLink& hop) const {
    const plan::CommOptions& comm = plan_.comm;
    const bool emulated = comm.link_latency_us > 0 || comm.link_gbps > 0;
    return emulated || hop.in_domain() ? 0 : 1;
  }

  LaunchPrices prices_of(const LaunchCosts& costs) const {
    return list_.price(costs, costs.together(plan_.layout));
  }

  // Returns what the largest message of a rank takes, or an empty one. Its receiver wakes up then.
  LaunchCost message_cost(const std::pair<int64_t, int64_t>& hop, const plan::GroupLink& link,
                          const LaunchCosts& costs, bool full) const {
    const RecordedPipeline& recorded = pipelines_[0];
    const auto& send = recorded.ranks[recorded.of_rank[size_t(hop.first)]].send;
    MT_CHECK(send, "rank {} of the pipeline sends, but has recorded no message", hop.first);
    LaunchWork work = list_.work(*send);
    if (!full) work.wire_bytes = 0;
    LaunchCost cost = costs.cost(work, &link);
    cost.seconds += costs.together(plan_.layout).wake_s;
    return cost;
  }

  // Returns the times of the rank that computes longest, without the bubble.
  ReplayTimes times_of_rank(const PlayedTimes& played) const {
    const auto& [all, costs, timeline, unknown_hops] = played;
    const std::vector<StageTimes>& stages = all.stages;
    const size_t rank = size_t(std::ranges::max_element(timeline.busy) - timeline.busy.begin());
    const schedule::ActionList& list = schedule_.ranks[rank];
    std::map<std::pair<int64_t, ActionKind>, int64_t> counts;
    std::map<schedule::PairKey, int64_t> pairs;
    ReplayTimes t;
    double counted = 0;  // of the dp lane, by computations
    for (size_t i = 0; i < list.size(); ++i) {
      const schedule::Action& a = list[i];
      if (!is_compute(a.kind)) continue;
      counted += exposed_inside(costs.stages[size_t(a.stage)].dp, a.kind);
      if (a.overlaps_next && i + 1 < list.size()) {
        const schedule::Action& b = list[++i];
        counted += exposed_inside(costs.stages[size_t(b.stage)].dp, b.kind);
        ++pairs[{a.stage, b.stage, b.kind}];
      } else {
        ++counts[{a.stage, a.kind}];
      }
    }
    for (const auto& [action, count] : counts)
      t.add(of_action(stages[size_t(action.first)], action.second), double(count));
    for (const auto& [key, count] : pairs) t.add(all.of_pair(key), double(count));
    const auto lane = [&](schedule::Lane l) {
      return std::pair{timeline.sums[rank].busy[size_t(l)], timeline.sums[rank].exposed[size_t(l)]};
    };
    const auto add = [&](StreamKind kind, double busy, double exposed) {
      t.busy[size_t(kind)] += busy;
      t.exposed[size_t(kind)] += exposed;
      t.seconds += exposed;
    };
    const auto [sends, in_sends] = lane(schedule::Lane::pp_send);
    const auto [receives, in_receives] = lane(schedule::Lane::pp_receive);
    add(StreamKind::pp_send, sends, in_sends);
    add(StreamKind::pp_recv, receives, in_receives);
    // The lane also has what actions wait for inside of them, which is counted already.
    add(StreamKind::dp_grad, 0, std::max(0.0, lane(schedule::Lane::dp).second - counted));
    for (const schedule::Action& a : list) {
      if (a.kind == ActionKind::unshard) {
        const ReplayTimes& gather = stages[size_t(a.stage)].gather;
        add(StreamKind::dp_param, gather.seconds, 0);
        t.unknown += gather.unknown;
      }
      if (!is_send(a.kind) && !is_receive(a.kind)) continue;
      const std::pair hop =
          is_send(a.kind) ? std::pair{int64_t(rank), a.peer} : std::pair{a.peer, int64_t(rank)};
      if (unknown_hops.contains(hop)) {
        const schedule::MessageCost& m = costs.messages.at(hop);
        t.unknown += m.latency + m.transfer;
      }
    }
    return t;
  }

  const RunPlan plan_;
  const plan::Cluster cluster_;
  LaunchList list_;
  // With all layers, or with few of them and with one period more. `steps_` without a pipeline.
  std::vector<WholeStep> steps_;
  std::vector<RecordedPipeline> pipelines_;
  std::vector<double> periods_;  // by stage: how often the difference of the two follows
  int64_t further_ = 0;          // how often the difference of a WholeStep follows
  // The lists of all flushes of a pipeline's step.
  schedule::Schedule schedule_;
  std::map<std::pair<int64_t, int64_t>, plan::GroupLink> hops_;  // by sender and receiver
};

StepModel::StepModel(const RunPlan& plan, const plan::Cluster& cluster, RecordedParts parts)
    : recording_(std::make_unique<const Recording>(plan, cluster, parts)) {}
StepModel::~StepModel() = default;
Prediction StepModel::price(const LaunchCosts& costs) const { return recording_->price(costs); }
PlayedPipeline StepModel::play(const LaunchCosts& costs) const { return recording_->play(costs); }
size_t StepModel::recorded_stages() const { return recording_->recorded_stages(); }

}  // namespace mtrain::predict
