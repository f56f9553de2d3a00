#include "predict/step_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
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
  double delayed = 0;   // share of W
  ByStreamKind last{};  // how long streams are at work for the last gradients beyond other ones

  // Adds a multiple of the difference to the times of a stage with more layers.
  void extrapolate(const StageTimes& more, double times) {
    for (const auto member : {&StageTimes::F, &StageTimes::B, &StageTimes::I, &StageTimes::W})
      (this->*member) = extrapolated(this->*member, more.*member, times);
    for (const auto member : {&StageTimes::first, &StageTimes::reduce, &StageTimes::gather})
      this->*member += times * (more.*member - this->*member);
    for (size_t kind = 0; kind < kStreamKinds; ++kind)
      last[kind] += times * (more.last[kind] - last[kind]);
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
          .gather = t.gather,
          .reduce = t.reduce,
          .tp = inside(t, {StreamKind::tp}),
          .cp = inside(t, {StreamKind::cp}),
          .ep = inside(t, {StreamKind::ep, StreamKind::ep_counts}),
          .dp = inside(t, {StreamKind::dp_grad, StreamKind::dp_param})};
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
    schedule_ = plan::executed_schedule(plan_);
    message_link_ = links.between_stages();
  }

  PlayedPipeline play(const LaunchCosts& costs) const {
    MT_CHECK(plan_.layout.pp > 1, "a picture of one stage");
    const PipelineTimes all = all_times(list_.price(costs));
    return {.schedule = schedule_,
            .timeline = schedule::simulate(schedule_, schedule_costs(all, costs)),
            .before = std::ranges::max(all.before, {}, &ReplayTimes::seconds).seconds,
            .first_gather = std::ranges::max(all.stages, {}, &StageTimes::first).first};
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
    return p;
  }

  // Stages of different ranks that enqueue the same, as far as a recording knows, have equal keys.
  std::vector<int64_t> key_of(const RunPlan& plan, int64_t pp_rank) const {
    const schedule::Schedule& s = plan.schedule;
    std::vector<int64_t> key;
    int64_t layer = 0;
    for (int64_t stage = 0; stage < s.stages; ++stage) {
      const int64_t count = plan.layout.layers_of_stage[size_t(stage)], first = layer;
      layer += count;
      if (s.rank_of(stage) != pp_rank) continue;
      const auto here = [&](int64_t other) {
        return other >= 0 && other < s.stages && s.rank_of(other) == pp_rank;
      };
      key.insert(key.end(),
                 {-1, stage == 0, stage + 1 == s.stages, stage == plan.layout.prediction_stage(),
                  here(stage - 1), here(stage + 1)});
      for (int64_t i = first; i < layer; ++i) {
        // The first layer of its kind.
        int64_t kind = 0;
        while (plan.model.layer(kind) != plan.model.layer(i)) ++kind;
        key.insert(key.end(), {kind, plan.fp8.has(i)});
      }
    }
    return key;
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
    const std::optional<RunPlan> two = all ? std::nullopt : with_two_micro_batches(plan);
    const FewMicroBatches few = few_micro_batches(plan);
    if (two)
      plan = *two;
    else if (!all && further_groups(plan, few) > 0)
      plan = with_micro_batches(std::move(plan), few.few);
    else
      plan = with_micro_batches(plan, plan.layout.micro_batches);
    const schedule::Schedule lists = plan::executed_schedule(plan);
    RecordedPipeline& recorded = pipelines_.emplace_back();
    recorded.micro_batches = plan.layout.micro_batches;
    recorded.of_stage.resize(size_t(plan.layout.stages));
    std::map<std::vector<int64_t>, std::pair<size_t, int64_t>> known;  // place and pp rank
    for (int64_t r = 0; r < plan.layout.pp; ++r) {
      std::vector<int64_t> key = key_of(plan, r);
      if (all) key.push_back(r);
      const auto [at, added] = known.emplace(std::move(key), std::pair{recorded.ranks.size(), r});
      if (added)
        recorded.ranks.push_back(sort_by_action(record_step(plan, rank_of_stage(plan, r)).records,
                                                lists.ranks[size_t(r)], plan.layout.micro_batches,
                                                list_, links));
      const auto& [place, of] = at->second;
      recorded.of_rank.push_back(place);
      const std::vector<int64_t> stages = plan::stages_of_rank(plan.schedule_shape, r),
                                 same = plan::stages_of_rank(plan.schedule_shape, of);
      for (size_t i = 0; i < stages.size(); ++i) recorded.of_stage[size_t(stages[i])] = same[i];
    }
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
    const ReplayTimes& usual = s.last_kind == ActionKind::B ? t.B : t.W;
    const ReplayTimes last = replay(s.last_gradients, list_, prices, ReplayEnd::all_streams);
    t.reduce = std::max(0.0, last.seconds - usual.seconds);
    for (const StreamKind kind : {StreamKind::dp_grad, StreamKind::dp_param})
      t.last[size_t(kind)] = std::max(0.0, last.busy[size_t(kind)] - usual.busy[size_t(kind)]);
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
  double together(const RecordedPipeline& recorded, const std::vector<StageTimes>& stages,
                  const LaunchPrices& prices) const {
    double pairs = 0, alone = 0;
    for (const PipelineRankSequences& rank : recorded.ranks)
      for (const PairSequence& pair : rank.pairs) {
        pairs += times_of(pair.sequence, prices).seconds;
        alone += stages[size_t(pair.forward)].F.seconds +
                 of_action(stages[size_t(pair.backward)], pair.backward_kind).seconds;
      }
    return alone > 0 ? pairs / alone : 1;
  }

  // What a recorded pipeline takes.
  struct PipelineTimes {
    std::vector<StageTimes> stages;
    std::vector<ReplayTimes> before, after;  // the actions, by place in RecordedPipeline::ranks
    double together = 1;
  };

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
        const auto more = double(plan_.layout.micro_batches - recorded.micro_batches);
        before.compute[size_t(LaunchClass::memory)] += more * prices.seconds[upload];
        before.gaps += more * prices.gap;
        before.seconds += more * (prices.seconds[upload] + prices.gap);
      }
      t.after.push_back(replay(rank.after, list_, prices, ReplayEnd::all_streams));
    }
    for (const int64_t stage : recorded.of_stage) t.stages.push_back(known.at(stage));
    t.together = together(recorded, t.stages, prices);
    return t;
  }

  // Returns the times of the plan: those with few layers, and the layers that follow.
  PipelineTimes all_times(const LaunchPrices& prices) const {
    PipelineTimes t = times_of(pipelines_[0], prices);
    if (pipelines_.size() == 1) return t;
    const PipelineTimes more = times_of(pipelines_[1], prices);
    for (size_t stage = 0; stage < t.stages.size(); ++stage)
      t.stages[stage].extrapolate(more.stages[stage], periods_[stage]);
    // The mean over the stages whose layers were removed.
    const auto cut = double(std::ranges::count_if(periods_, [](double p) { return p > 0; }));
    const double mean = std::accumulate(periods_.begin(), periods_.end(), 0.0) / cut;
    for (const auto part : {&PipelineTimes::before, &PipelineTimes::after})
      for (size_t rank = 0; rank < t.before.size(); ++rank)
        (t.*part)[rank] = StageTimes::extrapolated((t.*part)[rank], (more.*part)[rank], mean);
    return t;
  }

  Prediction pipeline(const LaunchPrices& prices, const LaunchCosts& costs) const {
    const PipelineTimes all = all_times(prices);
    const std::vector<StageTimes>& stages = all.stages;
    const double first = std::ranges::max(stages, {}, &StageTimes::first).first;
    const ReplayTimes before = std::ranges::max(all.before, {}, &ReplayTimes::seconds),
                      after = std::ranges::max(all.after, {}, &ReplayTimes::seconds);
    const schedule::ScheduleCosts c = schedule_costs(all, costs);
    const schedule::Timeline timeline = schedule::simulate(schedule_, c);
    Prediction p;
    p.times = times_of_rank(stages, c, timeline);
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

  schedule::ScheduleCosts schedule_costs(const PipelineTimes& all, const LaunchCosts& costs) const {
    schedule::ScheduleCosts c = plan::costs_in_order(plan_.pipeline);
    c.stages.clear();
    for (const StageTimes& t : all.stages) {
      c.stages.push_back(cost_of(t));
      c.delayed_wgrad = std::max(c.delayed_wgrad, t.delayed);
    }
    c.together = all.together;
    const double message = message_seconds(costs);
    c.p2p_latency = std::min(message, message_link_.link.latency_s);
    c.p2p_transfer = message - c.p2p_latency;
    return c;
  }

  double message_seconds(const LaunchCosts& costs) const {
    double seconds = 0;
    for (const PipelineRankSequences& rank : pipelines_[0].ranks)
      if (rank.send)
        seconds = std::max(seconds, costs.cost(list_.work(*rank.send), &message_link_).seconds);
    return seconds;
  }

  // Returns the times of the rank that computes longest in one flush, without the bubble.
  ReplayTimes times_of_rank(const std::vector<StageTimes>& stages,
                            const schedule::ScheduleCosts& costs,
                            const schedule::Timeline& timeline) const {
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
    // What pairs save is exposed communication of experts; gaps are hidden after it.
    const auto exposed_by = [&](StreamKind kind) { return &t.exposed[size_t(kind)]; };
    for (double* hidden : {exposed_by(StreamKind::ep), exposed_by(StreamKind::ep_counts),
                           exposed_by(StreamKind::control), exposed_by(StreamKind::tp), &t.gaps}) {
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
    // The lane also has what actions wait for inside of them, which is counted already.
    const double counted =
        t.exposed[size_t(StreamKind::dp_grad)] + t.exposed[size_t(StreamKind::dp_param)];
    add(StreamKind::dp_grad, 0, std::max(0.0, lane(schedule::Lane::dp).second - counted));
    for (const schedule::Action& a : list)
      if (a.kind == ActionKind::unshard)
        add(StreamKind::dp_param, stages[size_t(a.stage)].gather, 0);
    for (size_t stage = 0; stage < stages.size(); ++stage)
      if (schedule_.rank_of(int64_t(stage)) == int64_t(rank))
        for (const StreamKind kind : {StreamKind::dp_grad, StreamKind::dp_param})
          add(kind, stages[stage].last[size_t(kind)], 0);
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
  // Of a pipeline: the lists of a flush.
  schedule::Schedule schedule_;
  plan::GroupLink message_link_;
};

StepModel::StepModel(const RunPlan& plan, const plan::Cluster& cluster, RecordedParts parts)
    : recording_(std::make_unique<const Recording>(plan, cluster, parts)) {}
StepModel::~StepModel() = default;
Prediction StepModel::price(const LaunchCosts& costs) const { return recording_->price(costs); }
PlayedPipeline StepModel::play(const LaunchCosts& costs) const { return recording_->play(costs); }

}  // namespace mtrain::predict
