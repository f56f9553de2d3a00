// The output of `mtrain watch`.
#pragma once
#include <string>
#include <vector>

#include "observe/curves.h"
#include "observe/metrics_reader.h"

namespace mtrain::observe {

struct WatchedRun {
  std::string name;  // as the user gave it
  const RunMetrics* metrics = nullptr;
  bool live = false;  // whether it still trains
};

// The keys whose values a picture of `key` needs.
std::vector<std::string> watched_keys(const std::string& key);

// Returns a title, the curves of `key`, and a line for each run with its last figures. A picture of
// the loss shows validation losses, too.
std::string watch_text(const std::vector<WatchedRun>& runs, const std::string& key,
                       const CurveOptions& options);

// Returns how many lines watch_text() has in addition to the rows of the plot.
int lines_beside_plot(const std::vector<WatchedRun>& runs, const std::string& key,
                      const CurveOptions& options);

}  // namespace mtrain::observe
