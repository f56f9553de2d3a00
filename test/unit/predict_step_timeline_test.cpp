// Tests timelines of predictions: that they are readable, end with the predicted step, and show
// what compute waits for.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "observe/timeline.h"
#include "predict/sheet_costs.h"
#include "predict/step_timeline.h"
#include "test/support/predict_cases.h"
#include "test/support/temporary_folder.h"

namespace predict_step_timeline_test {

using namespace mtrain;
using namespace mtrain::predict;
using predict_cases::Case;
using predict_cases::with_experts;

namespace {

plan::Cluster cluster() {
  Diagnostics diagnostics;
  const plan::Cluster c = plan::read_cluster_text(
      "gpu: {kind: cpu, memory_gib: 4, peak_tflops: {fp32: 0.1, bf16: 0.1}}\n"
      "domain: {gpus: 2, gbps: 0.5}\nnetwork: {gbps: 0.2, latency_us: 50}\nnodes: 8\n",
      "cluster.yaml", diagnostics);
  diagnostics.throw_if_errors();
  return c;
}

struct Layout {
  const char* name;
  Case plan;
  std::vector<std::string> exposed;  // parallelisms that compute waits for
};

const Layout kLayouts[] = {
    {"one rank", {1, {}}, {}},
    {"ddp", {2, {"distributed.strategy=ddp"}}, {"dp"}},
    {"fsdp2", {2, {"distributed.strategy=fsdp2"}}, {"dp"}},
    {"tp", {2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}}, {"tp"}},
    {"cp", {2, {"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}}, {"cp"}},
    {"experts",
     {2, with_experts({"distributed.ep_size=2", "distributed.strategy=megatron_ddp"})},
     {"ep"}},
    {"1f1b", {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}}, {"pp"}},
    {"zero_bubble",
     {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zero_bubble"}},
     {"pp"}},
    {"interleaved, tp, dp",
     {8,
      {"distributed.pp_size=2", "distributed.vpp_size=2", "distributed.tp_size=2",
       "distributed.sequence_parallel=true", "distributed.pipeline.pp_schedule=interleaved_1f1b",
       "distributed.strategy=megatron_ddp", "train.global_batch_size=16"}},
     {"tp", "dp"}},
    {"pipeline of experts",
     {4,
      with_experts({"distributed.ep_size=2", "distributed.pp_size=2",
                    "distributed.pipeline.pp_schedule=1f1b", "distributed.strategy=megatron_ddp"})},
     {"ep"}}};

struct Written {
  RunPlan plan;
  Prediction prediction;
  std::string text;
  observe::Trace trace;  // of a JSON file
};

Written written(const Layout& layout, const std::string& file) {
  const plan::Cluster c = cluster();
  const SheetCosts costs(c, {});
  Written w{.plan = predict_cases::plan_of(layout.plan)};
  const StepModel model(w.plan, c, parts_for_timeline(w.plan));
  w.prediction = model.price(costs);
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / file;
  write_timeline(path, timeline_format(file).value(), w.plan, c, costs, model, w.prediction);
  w.text = read_file(path);
  if (file.ends_with(".json")) w.trace = observe::read_trace(path);
  // Nothing else is left in the folder.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  return w;
}

// The parallelism of a stream: "dp" of dp_grad, "pp" of pp_send_1.
std::string axis_of(const std::string& stream) { return stream.substr(0, stream.find('_')); }

}  // namespace

TEST_CASE("a timeline as a trace parses, and its lanes end with the predicted step") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    const Written w = written(layout, "step.json");
    CHECK(nlohmann::json::parse(w.text).at("traceEvents").is_array());
    const double step_us = 1e6 * w.prediction.step_s;
    std::map<int64_t, double> ends;             // by rank
    std::map<std::string, double> waits, busy;  // of rank 0, microseconds by parallelism
    for (const observe::TraceTrack& track : w.trace) {
      double last = 0;
      for (const observe::TraceSpan& s : track.spans) {
        CHECK(s.begin_us >= last - 0.002);  // the times of a trace are whole nanoseconds
        CHECK(s.end_us <= step_us + 0.002);
        last = s.end_us;
        if (track.name != observe::kStepTrack) ends[track.rank] = std::max(ends[track.rank], last);
        if (track.rank > 0) continue;
        if (track.name == observe::kComputeTrack && s.wait)
          waits[axis_of(s.name.substr(s.name.rfind(' ') + 1))] += s.end_us - s.begin_us;
        else if (!s.wait)
          busy[axis_of(track.name)] += s.end_us - s.begin_us;
      }
      if (track.name == observe::kStepTrack) {
        REQUIRE(track.spans.size() == 1);
        CHECK(track.spans[0].end_us == Approx(step_us));
      }
    }
    CHECK(int64_t(ends.size()) == w.plan.layout.pp);
    for (const auto& [rank, end] : ends) CHECK(end == Approx(step_us).epsilon(1e-6));
    for (const std::string& axis : layout.exposed) {
      CAPTURE(axis);
      CHECK(busy[axis] > 0);
      CHECK(waits[axis] > 0.01 * busy[axis]);
      // A rank without a pipeline waits no shorter than the communication of the prediction is
      // exposed, and both are below the time at work but for gaps.
      if (w.plan.layout.pp == 1) CHECK(waits[axis] >= 0.95e6 * w.prediction.exposed(axis) - 20);
    }
    // What `mtrain timeline` shows.
    const std::string shown = observe::timeline_text(w.trace, {});
    INFO(shown);
    CHECK(shown.find("rank 0 ") != std::string::npos);
    CHECK(shown.find("compute ") != std::string::npos);
  }
}

TEST_CASE("a timeline as a picture has passes and lanes, with and without a pipeline") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    const Written svg = written(layout, "step.svg"), page = written(layout, "step.html");
    CHECK(svg.text.starts_with("<svg "));
    CHECK(page.text.starts_with("<!DOCTYPE html>"));
    for (const std::string& text : {svg.text, page.text}) {
      CHECK(text.find("<title>0F0 ") != std::string::npos);
      for (const std::string& axis : layout.exposed) {
        CAPTURE(axis);
        CHECK(text.find("<title>" + axis) != std::string::npos);
        CHECK(text.find(axis + (axis == "pp" ? " send communication" : " communication")) !=
              std::string::npos);
      }
    }
  }
}

TEST_CASE("the end of a file's name decides the format of a timeline") {
  CHECK(timeline_format("a.svg") == TimelineFormat::svg);
  CHECK(timeline_format("a.b.html") == TimelineFormat::html);
  CHECK(timeline_format("folder/a.json") == TimelineFormat::json);
  for (const char* other : {"a", "a.png", "json", "a.json.gz", "a.SVG", ""}) {
    CAPTURE(other);
    CHECK_FALSE(timeline_format(other));
  }
}

}  // namespace predict_step_timeline_test
