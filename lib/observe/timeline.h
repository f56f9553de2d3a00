// Shows a trace as text: what every stream did when, side by side.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mtrain::observe {

struct TraceSpan {
  std::string name;
  double begin_us = 0, end_us = 0;
};

struct TraceTrack {
  int64_t rank = 0;
  std::string name;  // as the file has it: a stream's, or kStepTrack
  std::vector<TraceSpan> spans;
};

// The tracks by rank, and within a rank in the order of the file.
using Trace = std::vector<TraceTrack>;

// Reads a file that ChromeTrace, or another program, has written; only complete events ("X") count.
// Throws UserError.
Trace read_trace(const std::filesystem::path& path);

// The name of the track on which a trace has the steps' own spans, "step 1" and so on.
inline constexpr const char* kStepTrack = "steps";

struct TimelineOptions {
  std::optional<int64_t> step;           // without a step and a time, the trace's last step
  std::optional<double> from_ms, to_ms;  // a time instead of a step, on the trace's clock
  std::vector<int64_t> ranks = {};       // all where empty
  int64_t columns = 120;
};

// Returns a row per stream with time from left to right. A letter says which kind of launch took
// the most of a column's time, and `.` that most of it was idle. A row ends with the share of time
// in which the stream was at work. A legend names the letters. Throws UserError for a step or rank
// that the trace does not have.
std::string timeline_text(const Trace& trace, const TimelineOptions& options);

}  // namespace mtrain::observe
