// metrics.jsonl: one JSON object per line and step, for plots and for other programs.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "observe/line_file.h"

namespace mtrain::observe {

struct Metric {
  // "loss", "lr", "grad_norm", "tokens_per_s", "mfu", "step_ms", "memory_peak.params", ...
  std::string_view name;
  // A number that is not finite is written as null.
  std::variant<int64_t, double, std::string> value;
};

class MetricsWriter {
 public:
  // Opens `path` to append to it. First removes, atomically, an incomplete last line and the lines
  // of steps after `steps_done`, since a resumed run repeats these steps. Throws RunError.
  MetricsWriter(const std::filesystem::path& path, int64_t steps_done);

  // Appends the line {"step": step, ...}, as LineFile::append() does.
  void write(int64_t step, const std::vector<Metric>& metrics);

 private:
  LineFile file_;
};

}  // namespace mtrain::observe
