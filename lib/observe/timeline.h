// Shows a trace as text: a row per stream, with time from left to right.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
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

// A pass as a rank has run it.
struct PassRun {
  std::string pass;
  int64_t stage = 0, micro_batch = 0;
  double begin_ms = 0, end_ms = 0;  // from the begin of the timeline on
  double busy_ms = 0;               // without waits
};

// A step of a trace, as pictures show it.
struct StepTimeline {
  std::string name;  // "step 12"; "" if the trace names no steps
  double ms = 0;
  struct Row {
    int64_t rank = 0;
    std::string stream;
    std::string cells;  // a letter for each part of the time, as in timeline_text()
    double busy = 0;    // the share of the time
  };
  std::vector<Row> rows;
  std::map<char, std::string> legend;              // of the letters
  std::map<int64_t, std::vector<PassRun>> passes;  // by rank, in the order of their begin
};
// `step` unset: the last one. The rows have `cells` letters. Throws UserError for a step that the
// trace does not have.
StepTimeline step_timeline(const Trace& trace, std::optional<int64_t> step, size_t cells);

// The steps of a rank in a trace, as its host has seen them.
struct RankSteps {
  int64_t rank = 0, steps = 0;
  double mean_ms = 0, least_ms = 0, most_ms = 0;
  double busy_ms = 0;  // of the compute stream in a step
};
std::vector<RankSteps> steps_by_rank(const Trace& trace);

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
