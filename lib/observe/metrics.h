// metrics.jsonl: one JSON object per line and step, for plots and for other programs.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mtrain {

struct Metric {
  std::string_view name;  // "loss", "lr", "grad_norm", "tokens_per_s", "mfu", "step_ms",
                          // "memory_peak.params", ...
  std::variant<int64_t, double, std::string>
      value;  // a number that is not finite is written as null
};

class MetricsWriter {
 public:
  // Appends to `path`. Lines of steps after `steps_done`, which a resumed run will make again, and
  // a torn last line are dropped first, atomically. Throws RunError.
  MetricsWriter(std::filesystem::path path, int64_t steps_done);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // {"step": step, ...}, handed to the system whole. A full disk is warned of once and does not end
  // the training; the file stays one of whole lines.
  void write(int64_t step, const std::vector<Metric>& metrics);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  bool warned_ = false;
};

}  // namespace mtrain
