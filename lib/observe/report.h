// One HTML page about runs, which needs no network.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/metrics_csv.h"

namespace mtrain::observe {

struct ReportSetting {
  std::string setting;
  std::vector<std::string> values;  // of each run
};

struct ReportInput {
  std::vector<RunFile> runs;
  std::vector<ReportSetting> settings;  // those in which the runs differ
  std::string settings_note;            // what the reader should know about them; may be empty
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
