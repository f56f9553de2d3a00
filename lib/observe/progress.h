// Shows the steps to a person: as one live line on a terminal, else as one plain line per step.
#pragma once
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"

namespace mtrain::observe {

// The figures of one step. Those that are NaN are not shown.
struct StepProgress {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0, total = 0;
  double loss = kUnknown;
  double lr = kUnknown;
  double grad_norm = kUnknown;
  double tokens_per_s = kUnknown;
  double mfu = kUnknown;    // between 0 and 1
  double eta_s = kUnknown;  // filled in by ProgressLine from step_s
  double step_s = kUnknown;
};

// Returns a line of at most `width` columns, from which the least important fields are left out
// until it fits. 0 is no limit.
std::string format_progress(const StepProgress& progress, int width);

struct ProgressOptions {
  int fd = 2;
  std::optional<bool> live, color;  // unset: what the terminal allows
  std::optional<int> width;
  double min_interval_s = 0.05;  // between two drawings of the live line
};

// Several threads may use it. While it lives, log lines do not tear its line.
class ProgressLine : private log::Overlay {
 public:
  explicit ProgressLine(ProgressOptions options = {});
  ~ProgressLine() override;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(StepProgress progress);
  void note(std::string_view line);  // prints a line of its own above
  bool live() const { return live_; }
  void finish();  // leaves the last state on the screen and ends its line

 private:
  void interrupt(const std::function<void()>& write_line) override;
  void draw_locked();

  ProgressOptions options_;
  bool live_, color_;
  std::mutex mutex_;
  std::optional<StepProgress> last_;
  bool shown_ = false;
  double step_s_ = 0;  // smoothed; 0 before the first
  int64_t next_draw_ns_ = 0;
};

}  // namespace mtrain::observe
