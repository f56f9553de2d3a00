#include "report_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "interchange/model_source.h"
#include "observe/timeline.h"
#include "plan/executed_schedule.h"
#include "plan/saved_recipe.h"

namespace mtrain {

namespace {

using observe::PassRun;
using observe::ReportLanes;
using observe::StepTimeline;

constexpr size_t kCells = 1200, kMostLanes = 64;
constexpr size_t kMostBoxes = 20000;  // of a picture; a box takes up to 50 bytes of the page

const std::vector<std::pair<std::string, std::string>> kPasses{{"F", "F forward"},
                                                               {"B", "B backward"},
                                                               {"W", "W weight gradients"},
                                                               {"I", "I input gradients"}};

std::string left_out(size_t all) {
  return all <= kMostLanes ? ""
                           : fmt::format("the first {} of {} lanes are shown", kMostLanes, all);
}

ReportLanes streams_of(const StepTimeline& t) {
  ReportLanes out{
      .title = fmt::format("Work of each stream in {}", t.name.empty() ? "the trace" : t.name),
      .note = left_out(t.rows.size()),
      .ms = t.ms};
  std::map<char, int64_t> count;
  for (const StepTimeline::Row& row : t.rows) {
    if (out.lanes.size() == kMostLanes) break;
    out.lanes.push_back(
        {.name = fmt::format("{} {} {:.0f} %", row.rank, row.stream, 100 * row.busy),
         .cells = row.cells});
    for (const char letter : row.cells) ++count[letter];
  }
  std::vector<std::pair<int64_t, char>> order;
  for (const auto& [letter, cells] : count)
    if (letter != '.') order.emplace_back(-cells, letter);
  std::ranges::sort(order);
  for (const auto& [cells, letter] : order)
    out.legend.emplace_back(std::string(1, letter), t.legend.at(letter));
  return out;
}

// A box for each pass: "3", or "1:3" on a rank with several stages.
std::vector<ReportLanes::Box> boxes_of(const std::vector<PassRun>& passes) {
  std::set<int64_t> stages;
  for (const PassRun& p : passes) stages.insert(p.stage);
  std::vector<ReportLanes::Box> boxes;
  for (const PassRun& p : passes)
    boxes.push_back(
        {.begin_ms = p.begin_ms,
         .end_ms = p.end_ms,
         .kind = p.pass,
         .text = fmt::format("{}{}", stages.size() > 1 ? fmt::format("{}:", p.stage) : "",
                             p.micro_batch)});
  return boxes;
}

// The share of the time between the first pass and the last one in which ranks compute no pass.
double idle_of(const std::vector<std::vector<PassRun>>& ranks) {
  double begin = 1e300, end = 0, busy = 0;
  for (const auto& passes : ranks)
    for (const PassRun& p : passes) {
      begin = std::min(begin, p.begin_ms), end = std::max(end, p.end_ms);
      busy += p.busy_ms;
    }
  return end > begin ? std::max(0.0, 1 - busy / (end - begin) / double(ranks.size())) : 0;
}

ReportLanes pipeline_lanes(std::string title, std::string note,
                           const std::vector<std::vector<PassRun>>& ranks,
                           const std::vector<std::string>& names) {
  ReportLanes out{.title = std::move(title),
                  .note = fmt::format("{}; idle {:.1f} %", note, 100 * idle_of(ranks)),
                  .legend = kPasses};
  size_t boxes = 0;
  for (size_t r = 0; r < ranks.size() && r < kMostLanes; ++r) {
    boxes += ranks[r].size();
    if (boxes > kMostBoxes) break;
    out.lanes.push_back({.name = names[r], .boxes = boxes_of(ranks[r])});
    for (const PassRun& p : ranks[r]) out.ms = std::max(out.ms, p.end_ms);
  }
  if (out.lanes.size() < ranks.size())
    out.note += fmt::format("; the first {} of {} ranks are shown", out.lanes.size(), ranks.size());
  return out;
}

// The mean time of each kind of pass of a stage, in ms, as it was run.
std::vector<schedule::StageCost> costs_of(const StepTimeline& t, int64_t stages) {
  struct Sum {
    double ms = 0;
    int64_t count = 0;
    double mean() const { return count ? ms / double(count) : 0; }
  };
  std::vector<std::map<std::string, Sum>> sums{size_t(stages)};
  for (const auto& [rank, passes] : t.passes)
    for (const PassRun& p : passes)
      if (p.stage < stages) {
        Sum& sum = sums[size_t(p.stage)][p.pass];
        sum.ms += p.busy_ms, ++sum.count;
      }
  std::vector<schedule::StageCost> costs;
  for (auto& of : sums) {
    // A backward is an input gradient and a weight gradient; together they take its time.
    const double B = of["B"].mean(), I = of["I"].mean(), W = of["W"].mean();
    costs.push_back({.F = of["F"].mean(), .I = I > 0 ? I : B - W, .W = I > 0 || W > 0 ? W : 0});
  }
  return costs;
}

// The pipeline of the recipe, with the passes' measured times and messages that take no time.
void add_drawn(observe::ReportInput& input, const StepTimeline& t, int64_t world,
               const std::filesystem::path& recipe) {
  std::optional<RunPlan> made;
  try {
    // The sizes of the vocabulary do not change a schedule.
    constexpr int64_t kVocabulary = 1 << 16;
    made =
        plan::saved_run_plan(interchange::model_source(), {.file = recipe}, {}, world, kVocabulary);
  } catch (const Error& e) {
    input.lanes.push_back(
        {.title = "Pipeline as drawn", .note = fmt::format("is not shown: {}", e.message())});
    return;
  }
  const RunPlan& plan = *made;
  if (plan.schedule.pp <= 1) return;
  schedule::ScheduleCosts costs = plan::costs_in_order(plan.pipeline);
  costs.stages = costs_of(t, plan.schedule.stages);
  const schedule::Schedule s = plan::executed_schedule(plan);
  const schedule::Timeline timeline = simulate(s, costs);
  std::vector<std::vector<PassRun>> ranks;
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < s.pp; ++rank) {
    std::vector<PassRun> passes;
    for (size_t i = 0; i < s.ranks[size_t(rank)].size(); ++i) {
      const schedule::Action& a = s.ranks[size_t(rank)][i];
      if (!is_compute(a.kind)) continue;
      const schedule::ActionTime& time = timeline.times[size_t(rank)][i];
      const std::string text = to_string(a);
      passes.push_back({.pass = text.substr(text.find_first_of("FBIW"), 1),
                        .stage = a.stage,
                        .micro_batch = a.micro_batch,
                        .begin_ms = time.begin,
                        .end_ms = time.end,
                        .busy_ms = time.end - time.begin});
    }
    ranks.push_back(std::move(passes));
    names.push_back(fmt::format("pipeline rank {}", rank));
  }
  input.lanes.push_back(pipeline_lanes(
      "Pipeline as drawn",
      fmt::format("{}, with the mean times of the passes as run, and messages that take no time",
                  s.name),
      ranks, names));
}

void add_pipeline(observe::ReportInput& input, const StepTimeline& t, int64_t world,
                  const std::filesystem::path& recipe) {
  std::vector<std::vector<PassRun>> ranks;
  std::vector<std::string> names;
  std::set<int64_t> stages;
  for (const auto& [rank, passes] : t.passes) {
    ranks.push_back(passes);
    names.push_back(fmt::format("rank {}", rank));
    for (const PassRun& p : passes) stages.insert(p.stage);
  }
  if (stages.size() < 2) return;
  input.lanes.push_back(
      pipeline_lanes("Pipeline as run", t.name.empty() ? "the whole trace" : t.name, ranks, names));
  add_drawn(input, t, world, recipe);
}

void add_steps(observe::ReportInput& input, const observe::Trace& trace) {
  observe::ReportBars bars{.title = "Step times by rank",
                           .axis = "rank",
                           .unit = "ms",
                           .sets = {{"mean", {}}, {"longest", {}}, {"computation", {}}}};
  int64_t steps = 0;
  for (const observe::RankSteps& r : observe::steps_by_rank(trace)) {
    bars.labels.push_back(std::to_string(r.rank));
    bars.sets[0].second.push_back(r.mean_ms);
    bars.sets[1].second.push_back(r.most_ms);
    bars.sets[2].second.push_back(r.busy_ms);
    steps = std::max(steps, r.steps);
  }
  bars.note = fmt::format("of the {} steps of the trace", steps);
  if (!bars.labels.empty()) input.bars.push_back(std::move(bars));
}

}  // namespace

void add_trace(observe::ReportInput& input, const std::filesystem::path& file,
               std::optional<int64_t> step, const std::filesystem::path& recipe) {
  const observe::Trace trace = observe::read_trace(file);
  const StepTimeline t = observe::step_timeline(trace, step, kCells);
  std::set<int64_t> ranks;
  for (const observe::TraceTrack& track : trace) ranks.insert(track.rank);
  input.lanes.push_back(streams_of(t));
  add_pipeline(input, t, int64_t(ranks.size()), recipe);
  add_steps(input, trace);
}

}  // namespace mtrain
