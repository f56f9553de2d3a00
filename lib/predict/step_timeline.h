// Writes what is predicted of a step over time: as a picture, or as a trace like that of a training
// (observe/chrome_trace.h), which Perfetto and `mtrain timeline` show.
#pragma once
#include <filesystem>
#include <optional>
#include <string_view>

#include "plan/cluster.h"
#include "plan/run_plan.h"
#include "predict/launch_costs.h"
#include "predict/prediction.h"
#include "predict/step_model.h"

namespace mtrain::predict {

enum class TimelineFormat {
  svg,   // a picture
  html,  // a page with a picture to zoom in
  json   // a trace
};
// Returns the format that the end of a file's name stands for; nothing for other ends.
std::optional<TimelineFormat> timeline_format(std::string_view path);

// What a timeline of this plan is made from. Without a pipeline it shows each launch of a rank, so
// all of them are recorded; the prediction of that record ends when the timeline does.
RecordedParts parts_for_timeline(const RunPlan& plan);

// Writes the step of `prediction`, which `model` has priced with `costs`. A plan with a pipeline
// has lanes for each of its ranks: its actions, and the communication inside and between them. A
// trace has the whole step, and a picture what lies between the first and the last pass. Other
// plans have one rank, which stands for all: in a trace each of its launches, in a picture its
// passes and lanes of communication. Communication that compute waits for is a wait of the compute
// stream in a trace. Throws RunError if the file cannot be written.
void write_timeline(const std::filesystem::path& path, TimelineFormat format, const RunPlan& plan,
                    const plan::Cluster& cluster, const LaunchCosts& costs, const StepModel& model,
                    const Prediction& prediction);

}  // namespace mtrain::predict
