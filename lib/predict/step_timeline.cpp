#include "predict/step_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "observe/chrome_trace.h"
#include "predict/group_links.h"
#include "predict/recorded_step.h"
#include "predict/replay.h"
#include "predict/stage_sequences.h"
#include "schedule/render.h"

namespace mtrain::predict {

using device::StreamKind;
using schedule::ActionKind;
using schedule::Lane;

namespace {

constexpr const char* kStep = "step 1";

int64_t nanoseconds(double seconds) { return std::llround(1e9 * seconds); }

// Adds spans to a trace, in seconds of the step.
class TraceWriter {
 public:
  explicit TraceWriter(int rank, double step_s) : trace_(rank) {
    trace_.set_origin(0);
    trace_.record_step(kStep, 0, nanoseconds(step_s));
  }

  void span(const char* name, device::StreamId stream, double begin, double end,
            std::string_view scope, int64_t wire_bytes = 0) {
    trace_.record({.name = name,
                   .stream = stream,
                   .begin_ns = nanoseconds(begin),
                   .end_ns = nanoseconds(end),
                   .wire_bytes = wire_bytes,
                   .scope = scope});
  }
  void wait(device::StreamId stream, device::StreamId waits_for, double begin, double end,
            std::string_view scope) {
    trace_.waited({.stream = stream,
                   .waits_for = waits_for,
                   .begin_ns = nanoseconds(begin),
                   .end_ns = nanoseconds(end),
                   .scope = scope});
  }
  void write(const std::filesystem::path& path) const { trace_.write(path); }

 private:
  observe::ChromeTrace trace_;
};

// A step of one rank, launch by launch.
struct ReplayedStep {
  device::Records records;
  std::vector<ReplaySpan> spans;  // of its items
  ReplayTimes times;

  ReplayedStep(const RunPlan& plan, const plan::Cluster& cluster, const LaunchCosts& costs)
      : records(record_step(plan, 0).records) {
    LaunchList list;
    GroupLinks links(plan, cluster);
    const LaunchSequence sequence = sequence_of(records, list, links);
    times = replay(sequence, list, list.price(costs, costs.together(plan.layout)),
                   ReplayEnd::all_streams, &spans);
  }

  // Calls f(item, span) for each.
  template <class F>
  void for_items(const F& f) const {
    for (size_t i = 0; i < spans.size(); ++i) f(records.items()[i], spans[i]);
  }
};

void write_trace(const std::filesystem::path& path, const ReplayedStep& step) {
  TraceWriter trace(0, step.times.seconds);
  double computed = 0, last = 0;
  device::StreamId last_stream = StreamKind::compute;
  step.for_items([&](const device::LaunchRecord& r, const ReplaySpan& s) {
    const std::string_view scope = r.scope ? std::string_view(*r.scope) : std::string_view();
    if (r.waits_for)
      trace.wait(r.stream, *r.waits_for, s.begin, s.end, scope);
    else
      trace.span(r.name, r.stream, s.begin, s.end, scope, r.wire_bytes);
    if (r.stream.kind == StreamKind::compute) computed = s.end;
    if (s.end > last) last = s.end, last_stream = r.stream;
  });
  // The step ends with its last stream.
  trace.wait(StreamKind::compute, last_stream, computed, step.times.seconds, "");
  trace.write(path);
}

std::optional<Lane> lane_of(StreamKind kind) {
  switch (kind) {
    case StreamKind::tp: return Lane::tp;
    case StreamKind::cp: return Lane::cp;
    case StreamKind::ep:
    case StreamKind::ep_counts: return Lane::ep;
    case StreamKind::dp_grad:
    case StreamKind::dp_param: return Lane::dp;
    default: return {};
  }
}

// Returns the passes of a rank without a pipeline as the list of one stage.
PlayedPipeline picture_of(const ReplayedStep& step, const RunPlan& plan) {
  PlayedPipeline p;
  p.schedule = {.name = "a rank without a pipeline",
                .pp = 1,
                .stages = 1,
                .micro_batches = plan.layout.step_micro_batches(),
                .rank_of_stage = {0},
                .ranks = {{}}};
  schedule::Timeline& t = p.timeline;
  t.step = step.times.seconds;
  t.times.resize(1), t.exchanges.resize(1), t.lanes.resize(1), t.sums.resize(1);
  t.busy.push_back(step.times.busy[size_t(StreamKind::compute)]);
  schedule::ActionList& list = p.schedule.ranks[0];
  // Shorter gaps are not visible.
  const double gap = t.step / 4000;
  std::map<Lane, size_t> last;  // the place of a lane's last time
  step.for_items([&](const device::LaunchRecord& r, const ReplaySpan& s) {
    if (r.waits_for || s.end <= s.begin) return;
    const auto action = r.scope ? action_of(*r.scope) : std::nullopt;
    if (r.stream.kind == StreamKind::compute && action && schedule::is_compute(action->kind)) {
      const schedule::Action a{
          .kind = action->kind, .stage = 0, .micro_batch = action->micro_batch};
      if (list.empty() || list.back() != a) {
        list.push_back(a);
        t.times[0].push_back({s.begin, s.end});
      }
      t.times[0].back().end = s.end;
    }
    const auto lane = lane_of(r.stream.kind);
    if (!lane) return;
    std::vector<schedule::LaneTime>& lanes = t.lanes[0];
    const size_t at = list.empty() ? 0 : list.size() - 1;
    const auto known = last.find(*lane);
    if (known != last.end() && lanes[known->second].action == at &&
        s.begin - lanes[known->second].end < gap) {
      lanes[known->second].end = std::max(lanes[known->second].end, s.end);
    } else {
      last[*lane] = lanes.size();
      lanes.push_back({*lane, at, s.begin, s.end});
    }
  });
  return p;
}

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::F: return "forward";
    case ActionKind::B: return "backward";
    case ActionKind::I: return "input gradients";
    default: return "weight gradients";
  }
}

// A lane's stream, and what a span on it is called.
std::pair<device::StreamId, const char*> stream_of(const schedule::LaneTime& lane,
                                                   const schedule::Action& action) {
  switch (lane.lane) {
    case Lane::tp: return {StreamKind::tp, "tp of a pass"};
    case Lane::cp: return {StreamKind::cp, "cp of a pass"};
    case Lane::ep: return {StreamKind::ep, "ep of a pass"};
    case Lane::pp_send: return {{StreamKind::pp_send, action.peer}, "send"};
    case Lane::pp_receive: return {{StreamKind::pp_recv, action.peer}, "receive"};
    case Lane::dp: break;
  }
  if (action.kind == ActionKind::unshard || action.kind == ActionKind::F)
    return {StreamKind::dp_param, "gather parameters"};
  return {StreamKind::dp_grad, "dp of a backward"};
}

// Adds the passes and messages of a rank to a trace.
class PipelineTrace {
 public:
  PipelineTrace(TraceWriter& trace, const PlayedPipeline& played, int64_t rank)
      : trace_(trace),
        list_(played.schedule.ranks[size_t(rank)]),
        times_(played.timeline.times[size_t(rank)]),
        lanes_(played.timeline.lanes[size_t(rank)]),
        exchanges_(played.timeline.exchanges[size_t(rank)]),
        of_action_(list_.size()) {
    for (const schedule::LaneTime& lane : lanes_) of_action_[lane.action].push_back(&lane);
  }

  // The first flush begins at `at`.
  void add(double at) {
    at_ = at;
    double clock = 0;
    for (size_t i = 0; i < list_.size(); ++i) {
      const schedule::Action& a = list_[i];
      const std::string scope = to_string(a);
      for (const schedule::LaneTime* lane : of_action_[i]) {
        const auto [stream, name] = stream_of(*lane, a);
        // The times of a receive begin when its message is ready, before earlier ones have arrived.
        double& last = lane_ends_[stream];
        if (lane->end > last)
          trace_.span(name, stream, at_ + std::max(lane->begin, last), at_ + lane->end, scope);
        last = std::max(last, lane->end);
      }
      const auto [begin, end] = times_[i];
      if (is_compute(a.kind)) {
        wait(StreamKind::dp_param, clock, begin, scope);
        compute(i, a.kind, scope);
      } else if (is_receive(a.kind) || is_send(a.kind)) {
        // Before a message was ready, the rank waited for another one to compute it.
        for (const schedule::LaneTime* lane : of_action_[i])
          if (end > begin)
            wait(stream_of(*lane, a).first, std::max(begin, lane->begin), end, scope);
      }
      clock = end;
    }
    for (const schedule::ExchangeTime& e : exchanges_)
      trace_.span("exchange of experts", StreamKind::ep, at_ + e.begin, at_ + e.end,
                  to_string(list_[e.action]));
    double last = clock;
    for (const schedule::LaneTime& lane : lanes_)
      if (lane.lane == Lane::dp) last = std::max(last, lane.end);
    wait(StreamKind::dp_grad, clock, last, "");
  }

 private:
  void wait(device::StreamId stream, double begin, double end, const std::string& scope) {
    if (end > begin) trace_.wait(StreamKind::compute, stream, at_ + begin, at_ + end, scope);
  }

  // What an action waits for is drawn at its end.
  void compute(size_t i, ActionKind kind, const std::string& scope) {
    const auto [begin, end] = times_[i];
    double exposed = 0;
    for (const schedule::LaneTime* lane : of_action_[i]) exposed += lane->exposed;
    const double share = exposed > end - begin ? (end - begin) / exposed : 1;
    double at = end - share * exposed;
    trace_.span(name_of(kind), StreamKind::compute, at_ + begin, at_ + at, scope);
    for (const schedule::LaneTime* lane : of_action_[i]) {
      wait(stream_of(*lane, list_[i]).first, at, at + share * lane->exposed, scope);
      at += share * lane->exposed;
    }
  }

  TraceWriter& trace_;
  const schedule::ActionList& list_;
  const std::vector<schedule::ActionTime>& times_;
  const std::vector<schedule::LaneTime>& lanes_;
  const std::vector<schedule::ExchangeTime>& exchanges_;
  std::vector<std::vector<const schedule::LaneTime*>> of_action_;
  double at_ = 0;
  std::map<device::StreamId, double> lane_ends_;  // of a stream's last span
};

void write_trace(const std::filesystem::path& path, const PlayedPipeline& played, double step_s) {
  const double begin = played.before + played.first_gather, end = begin + played.timeline.step;
  std::vector<std::filesystem::path> parts;
  for (int64_t rank = 0; rank < played.schedule.pp; ++rank) {
    TraceWriter trace(int(rank), step_s);
    trace.span("before the first pass", StreamKind::compute, 0, played.before, "");
    trace.wait(StreamKind::compute, StreamKind::dp_param, played.before, begin, "");
    PipelineTrace(trace, played, rank).add(begin);
    trace.span("after the last pass", StreamKind::compute, end, step_s, "");
    parts.emplace_back(path.string() + fmt::format(".rank-{}", rank));
    trace.write(parts.back());
  }
  observe::merge_traces(path, parts);
  for (const std::filesystem::path& part : parts) std::filesystem::remove(part);
}

}  // namespace

std::optional<TimelineFormat> timeline_format(std::string_view path) {
  using F = TimelineFormat;
  for (const auto& [end, format] :
       {std::pair{".svg", F::svg}, {".html", F::html}, {".json", F::json}})
    if (path.ends_with(end)) return format;
  return {};
}

RecordedParts parts_for_timeline(const RunPlan& plan) {
  return plan.layout.pp > 1 ? RecordedParts::few : RecordedParts::all;
}

void write_timeline(const std::filesystem::path& path, TimelineFormat format, const RunPlan& plan,
                    const plan::Cluster& cluster, const LaunchCosts& costs, const StepModel& model,
                    const Prediction& prediction) {
  PlayedPipeline played;
  if (plan.layout.pp > 1) {
    played = model.play(costs);
    if (format == TimelineFormat::json) return write_trace(path, played, prediction.step_s);
  } else {
    const ReplayedStep step(plan, cluster, costs);
    if (format == TimelineFormat::json) return write_trace(path, step);
    played = picture_of(step, plan);
  }
  write_file_atomic(path, format == TimelineFormat::html
                              ? schedule_html(played.schedule, played.timeline)
                              : schedule_svg(played.schedule, played.timeline));
}

}  // namespace mtrain::predict
