// metrics.jsonl: one JSON object per line and step, for plots and for other programs.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "observe/line_file.h"

namespace mtrain::observe {

struct Metric {
  std::string_view name;  // one of metric_keys.h
  // A number that is not finite is written as null.
  std::variant<int64_t, double, std::string> value;
};

class MetricsWriter {
 public:
  // Opens `path` to append to it. First removes, atomically, an incomplete last line and the lines
  // of steps after `steps_done`, since a resumed run repeats these steps. Damaged lines after the
  // record of the last step that stays are removed, too. Throws RunError.
  MetricsWriter(const std::filesystem::path& path, int64_t steps_done);

  // Appends the line {"step": step, ..., "time": ..., "elapsed_s": ...} with LineFile::append().
  // The metrics are those of a step or of an evaluation, never both.
  void write(int64_t step, const std::vector<Metric>& metrics);

 private:
  std::chrono::steady_clock::time_point opened_ = std::chrono::steady_clock::now();
  LineFile file_;
};

}  // namespace mtrain::observe
