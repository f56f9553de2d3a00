// One HTML page about runs, which needs no network.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/metrics_csv.h"

namespace mtrain::observe {

struct ReportSetting {
  std::string setting;
  std::vector<std::string> values;  // of each run
};

// A picture with time from left to right, and a lane for each stream or rank.
struct ReportLanes {
  struct Box {
    double begin_ms = 0, end_ms = 0;
    std::string kind, text;  // the kind decides the color
  };
  struct Lane {
    std::string name;
    std::string cells = {};       // letters of equal parts of the time; `.` is empty
    std::vector<Box> boxes = {};  // instead of letters
  };
  std::string title, note;
  double ms = 0;
  std::vector<Lane> lanes;
  std::vector<std::pair<std::string, std::string>> legend;  // a letter or kind, and its meaning
};

// Bars beside each other at each label.
struct ReportBars {
  std::string title, axis, unit, note;
  std::vector<std::string> labels;
  std::vector<std::pair<std::string, std::vector<double>>> sets;
};

struct ReportInput {
  std::vector<RunFile> runs;
  std::vector<ReportSetting> settings;  // those in which the runs differ
  std::string settings_note;            // what the reader should know about them; may be empty
  std::vector<ReportLanes> lanes = {};
  std::vector<ReportBars> bars = {};
  // Called with a run's name and the part of its file that was read; may be empty.
  std::function<void(const std::string& run, double part)> progress = {};
};

// Returns the page: curves of all runs in shared charts, and tables. Long curves are drawn by an
// Envelope, so the page stays below 3 MB. Each number on it is one of metrics.jsonl. A run without
// a record only has a note. Throws UserError if no run has one.
std::string report_html(const ReportInput& input);

// Returns JSON text that may stand in an element `script`: it has no `<`.
std::string for_script(std::string json);

}  // namespace mtrain::observe
