#include "predict/step_model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "plan/executed_schedule.h"
#include "predict/group_links.h"
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

// The costs of a stage's actions.
struct StageTimes {
  ReplayTimes F, B, I, W;  // B: I and W together
  double first = 0;        // by how much the first forward takes longer than the others
  double reduce = 0;  // by how much the gradients are ready later than after another micro-batch
  double gather = 0;
  double delayed = 0;  // share of W
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
          .gather = t.gather,
          .reduce = t.reduce,
          .tp = inside(t, {StreamKind::tp}),
          .cp = inside(t, {StreamKind::cp}),
          .dp = inside(t, {StreamKind::dp_grad, StreamKind::dp_param})};
}

}  // namespace

class StepModel::Recording {
 public:
  Recording(const RunPlan& plan, const plan::Cluster& cluster) : plan_(plan), cluster_(cluster) {
    if (const std::string obstacle = recording_obstacle(plan); !obstacle.empty())
      throw UserError("the step of this plan cannot be predicted: " + obstacle);
    GroupLinks links(plan_, cluster_);
    plan.layout.pp == 1 ? record_whole(links) : record_pipeline(links);
  }

  Prediction price(const LaunchCosts& costs) const {
    const LaunchPrices prices = list_.price(costs);
    Prediction p = plan_.layout.pp == 1 ? whole(prices) : pipeline(prices, costs);
    p.step_s = p.times.seconds + p.bubble_s;
    const double tokens = double(plan_.train.global_batch_size * plan_.sample_length);
    p.tokens_per_s = tokens / p.step_s;
    p.mfu = p.tokens_per_s * plan_.token_cost.flops(plan_.sample_length) /
            (peak_flops(plan_, cluster_) * double(plan_.layout.world));
    for (const plan::MemoryEstimate& m : plan_.memory) p.memory.push_back(m.total());
    p.band = band_of(plan_, cluster_, p.times.unknown / p.step_s);
    return p;
  }

 private:
  void record_whole(GroupLinks& links) {
    const FewMicroBatches few = few_micro_batches(plan_);
    further_ = further_groups(plan_, few);
    const auto record = [&](const RunPlan& plan) {
      return sequence_of(record_step(plan, 0).records, list_, links);
    };
    if (further_ == 0) {
      short_ = record(plan_);
      return;
    }
    short_ = record(with_micro_batches(plan_, few.few));
    longer_ = record(with_micro_batches(plan_, few.few + few.step));
  }

  Prediction whole(const LaunchPrices& prices) const {
    const auto times = [&](const LaunchSequence& s) {
      return replay(s, list_, prices, ReplayEnd::all_streams);
    };
    Prediction p;
    p.times = times(short_);
    if (further_ == 0) return p;
    ReplayTimes difference = times(longer_);
    difference.add(p.times, -1);
    p.times.add(difference, double(further_));
    return p;
  }

  void record_pipeline(GroupLinks& links) {
    schedule_ = plan::executed_schedule(plan_);
    RunPlan one = plan_;
    one.layout.flushes = 1;
    const FewMicroBatches few = few_micro_batches(one);
    one = with_micro_batches(std::move(one),
                             further_groups(one, few) > 0 ? few.few : one.layout.micro_batches);
    const schedule::Schedule lists = plan::executed_schedule(one);
    for (int64_t r = 0; r < plan_.layout.pp; ++r)
      ranks_.push_back(sort_by_action(record_step(one, rank_of_stage(plan_, r)).records,
                                      lists.ranks[size_t(r)], list_, links));
    message_link_ = links.between_stages();
  }

  ReplayTimes times_of(const LaunchSequence& s, const LaunchPrices& prices) const {
    return replay(s, list_, prices, ReplayEnd::compute);
  }
  double full_time_of(const LaunchSequence& s, const LaunchPrices& prices) const {
    return replay(s, list_, prices, ReplayEnd::all_streams).seconds;
  }

  StageTimes times_of(const StageSequences& s, const LaunchPrices& prices) const {
    const auto of = [&](ActionKind kind) { return times_of(s.actions[size_t(kind)], prices); };
    StageTimes t{.F = of(ActionKind::F)};
    ReplayTimes backward = of(ActionKind::B);
    if (!s.actions[size_t(ActionKind::I)].empty()) {
      t.I = of(ActionKind::I);
      t.W = of(ActionKind::W);
      t.B = t.I;
      t.B.add(t.W);
    } else {
      t.I = backward;
      t.W = times_of(s.delayed, prices);
      t.delayed = s.delayed.empty() ? 0 : 1;
      t.B = t.I;
      t.B.add(t.W);
    }
    t.first = std::max(0.0, times_of(s.first_forward, prices).seconds - t.F.seconds);
    const double usual = (s.last_kind == ActionKind::B ? t.B : t.W).seconds;
    t.reduce = std::max(0.0, full_time_of(s.last_gradients, prices) - usual);
    t.gather = full_time_of(s.gather, prices);
    return t;
  }

  static const ReplayTimes& of_action(const StageTimes& t, ActionKind kind) {
    switch (kind) {
      case ActionKind::F: return t.F;
      case ActionKind::I: return t.I;
      case ActionKind::W: return t.W;
      default: return t.B;
    }
  }

  // Returns which share of their times a forward and a backward take together.
  double together(const std::vector<StageTimes>& stages, const LaunchPrices& prices) const {
    double pairs = 0, alone = 0;
    for (const PipelineRankSequences& rank : ranks_)
      for (const PairSequence& pair : rank.pairs) {
        pairs += times_of(pair.sequence, prices).seconds;
        alone += stages[size_t(pair.forward)].F.seconds +
                 of_action(stages[size_t(pair.backward)], pair.backward_kind).seconds;
      }
    return alone > 0 ? pairs / alone : 1;
  }

  Prediction pipeline(const LaunchPrices& prices, const LaunchCosts& costs) const {
    std::vector<StageTimes> stages(size_t(plan_.layout.stages));
    double first = 0;
    ReplayTimes before, after;
    for (const PipelineRankSequences& rank : ranks_) {
      for (const auto& [stage, sequences] : rank.stages) {
        stages[size_t(stage)] = times_of(sequences, prices);
        first = std::max(first, stages[size_t(stage)].first);
      }
      const auto slowest = [&](ReplayTimes& so_far, const LaunchSequence& s) {
        ReplayTimes t = replay(s, list_, prices, ReplayEnd::all_streams);
        if (t.seconds > so_far.seconds) so_far = t;
      };
      slowest(before, rank.before);
      slowest(after, rank.after);
    }
    schedule::ScheduleCosts c = plan::costs_in_order(plan_.pipeline);
    c.stages.clear();
    for (const StageTimes& t : stages) {
      c.stages.push_back(cost_of(t));
      c.delayed_wgrad = std::max(c.delayed_wgrad, t.delayed);
    }
    c.together = together(stages, prices);
    const double message = message_seconds(costs);
    c.p2p_latency = std::min(message, message_link_.link.latency_s);
    c.p2p_transfer = message - c.p2p_latency;
    const schedule::Timeline timeline = schedule::simulate(schedule_, c);
    Prediction p;
    p.times = times_of_rank(stages, c, timeline, prices);
    const auto flushes = double(plan_.layout.flushes);
    // Only the last flush reduces the gradients; the others are taken to do so, too.
    p.times.add(p.times, flushes - 1);
    const double step = timeline.step * flushes;
    p.bubble_s = std::max(0.0, step - p.times.seconds);
    p.times.add(before).add(after);
    p.times.exposed[size_t(StreamKind::dp_param)] += first;
    p.times.seconds += first;
    return p;
  }

  double message_seconds(const LaunchCosts& costs) const {
    double seconds = 0;
    for (const PipelineRankSequences& rank : ranks_)
      if (rank.send)
        seconds = std::max(seconds, costs.cost(list_.work(*rank.send), &message_link_).seconds);
    return seconds;
  }

  // Returns the times of the rank that computes longest in one flush, without the bubble.
  ReplayTimes times_of_rank(const std::vector<StageTimes>& stages,
                            const schedule::ScheduleCosts& costs,
                            const schedule::Timeline& timeline, const LaunchPrices& prices) const {
    const size_t rank = size_t(std::ranges::max_element(timeline.busy) - timeline.busy.begin());
    const schedule::ActionList& list = schedule_.ranks[rank];
    std::map<std::pair<int64_t, ActionKind>, int64_t> counts;
    ReplayTimes t;
    double saved = 0;  // by pairs
    for (size_t i = 0; i < list.size(); ++i) {
      if (!is_compute(list[i].kind)) continue;
      ++counts[{list[i].stage, list[i].kind}];
      if (list[i].overlaps_next && i + 1 < list.size())
        for (const schedule::Action* a : {&list[i], &list[i + 1]})
          saved += (1 - costs.together) * of_action(stages[size_t(a->stage)], a->kind).seconds;
    }
    for (const auto& [action, count] : counts)
      t.add(of_action(stages[size_t(action.first)], action.second), double(count));
    // What pairs save is exposed exchanges of experts; gaps are hidden after them.
    for (double* hidden : {&t.exposed[size_t(StreamKind::ep)], &t.gaps}) {
      const double less = std::min(saved, *hidden);
      *hidden -= less;
      t.seconds -= less;
      saved -= less;
    }
    t.seconds -= saved;
    t.compute[size_t(LaunchClass::memory)] -= saved;
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
    // The lane has what is gathered and reduced inside of actions, too, which is counted already.
    const auto [dp, in_dp] = lane(schedule::Lane::dp);
    const double counted_busy =
        t.busy[size_t(StreamKind::dp_grad)] + t.busy[size_t(StreamKind::dp_param)];
    const double counted =
        t.exposed[size_t(StreamKind::dp_grad)] + t.exposed[size_t(StreamKind::dp_param)];
    add(StreamKind::dp_grad, std::max(0.0, dp - counted_busy), std::max(0.0, in_dp - counted));
    (void)prices;
    return t;
  }

  const RunPlan plan_;
  const plan::Cluster cluster_;
  LaunchList list_;
  // Without a pipeline: steps with few micro-batches, and how often their difference follows.
  LaunchSequence short_, longer_;
  int64_t further_ = 0;
  // Of a pipeline: by rank, and the lists of a flush.
  std::vector<PipelineRankSequences> ranks_;
  schedule::Schedule schedule_;
  plan::GroupLink message_link_;
};

StepModel::StepModel(const RunPlan& plan, const plan::Cluster& cluster)
    : recording_(std::make_unique<const Recording>(plan, cluster)) {}
StepModel::~StepModel() = default;
Prediction StepModel::price(const LaunchCosts& costs) const { return recording_->price(costs); }

}  // namespace mtrain::predict
