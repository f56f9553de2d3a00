// A trace as text: what every stream did when, side by side.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mtrain {

struct TraceSpan {
  std::string name;
  double begin_us = 0, end_us = 0;
};

struct TraceTrack {
  int64_t rank = 0;
  std::string name;  // of the stream
  std::vector<TraceSpan> spans;
};

// By rank; within a rank in the order of the file.
using Trace = std::vector<TraceTrack>;

// A file as ChromeTrace writes it; other programs' too, where they have complete events ("X").
// Throws UserError.
Trace read_trace(const std::filesystem::path& path);

// Track of the steps' own spans, "step 1" and so on.
inline constexpr const char* kStepTrack = "steps";

struct TimelineOptions {
  std::optional<int64_t> step;           // the trace's last unless given, or a time is
  std::optional<double> from_ms, to_ms;  // instead, on the trace's clock
  std::vector<int64_t> ranks = {};       // all where empty
  int64_t columns = 120;
};

// A row per stream, time from left to right: a letter says which kind of launch took the most of a
// column's time, `.` that most of it was idle; at its end the share of time in which the stream
// was at work. A legend names the letters. Throws UserError for a step or rank that the trace does
// not have.
std::string timeline_text(const Trace& trace, const TimelineOptions& options);

}  // namespace mtrain
