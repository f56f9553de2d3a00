// Shows a trace as text: a row per stream, with time from left to right.
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
  std::string pass = {};                 // "F", "B", "I", "W", or another action of a pipeline
  int64_t stage = -1, micro_batch = -1;  // of the pass; -1: none
  int64_t bytes = 0;                     // that a communication sends
  bool wait = false;                     // the stream was idle
};

struct TraceTrack {
  int64_t rank = 0;
  std::string name;  // the name of a stream, or kStepTrack
  std::vector<TraceSpan> spans;
};

// The tracks are sorted by rank, and within a rank by their number in the file.
using Trace = std::vector<TraceTrack>;

// Reads a trace file of ChromeTrace or of another program. Keeps only complete events ("X"). Throws
// UserError if the file cannot be read or has no such event.
Trace read_trace(const std::filesystem::path& path);

// The name of the track whose spans are the steps: "step 1", "step 2", ...
inline constexpr const char* kStepTrack = "steps";
// The track of the compute stream.
inline constexpr const char* kComputeTrack = "compute";

struct TimelineOptions {
  std::optional<int64_t> step;           // unset, and without a time: the last step
  std::optional<double> from_ms, to_ms;  // a time instead of a step; 0 is the time 0 of the trace
  std::vector<int64_t> ranks = {};       // empty: all
  int64_t columns = 120;
};

// Returns a row per stream with time from left to right. A letter stands for the kind of launch
// that took most of a column's time. `-` means that the stream waited for most of it, and `.` that
// it was empty. Each row ends with the share of time in which the stream was busy. If the trace
// names passes, they are above a rank's streams: F3 is the forward of micro-batch 3, 1F3 that of
// stage 1 on a rank with several stages. The same kind has the same letter in every trace. A legend
// explains the letters. Throws UserError for a step, time or rank that the trace does not have.
std::string timeline_text(const Trace& trace, const TimelineOptions& options);

}  // namespace mtrain::observe
