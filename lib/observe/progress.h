// Shows the progress of the steps: as one live line on a terminal, else as a plain line per step.
#pragma once
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"

namespace mtrain::observe {

// The figures of one step. A figure that is NaN is not shown, except for the loss.
struct StepProgress {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0, total = 0;  // the step's number from 1, and the steps of the run
  double loss = kUnknown;
  double lr = kUnknown;
  double grad_norm = kUnknown;
  double loss_scale = kUnknown;
  double tokens_per_s = kUnknown;
  double mfu = kUnknown;     // between 0 and 1; above 1 it is shown as an error of measurement
  double eta_s = kUnknown;   // seconds left; ProgressLine computes it from step_s if unknown
  double step_s = kUnknown;  // seconds that this step took
};

// Returns a line of at most `width` columns; leaves out the least important fields until it fits. A
// width of 0 is no limit.
std::string format_progress(const StepProgress& progress, int width);

struct ProgressOptions {
  int fd = 2;
  std::optional<bool> live, color;  // unset: as the terminal allows
  std::optional<int> width;         // columns; unset: the terminal's
  double min_interval_s = 0.05;     // the shortest time between two drawings of the live line
};

// Several threads may use it. While it lives, log lines appear above its line and do not break it.
class ProgressLine : private log::Overlay {
 public:
  explicit ProgressLine(ProgressOptions options = {});
  ~ProgressLine() override;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(StepProgress progress);
  void note(std::string_view line);  // prints `line` above the progress line
  bool live() const { return live_; }
  void finish();  // leaves the last figures on the screen and ends the line

 private:
  void interrupt(const std::function<void()>& write_line) override;
  void draw_locked();

  ProgressOptions options_;
  bool live_, color_;
  std::mutex mutex_;
  std::optional<StepProgress> last_;
  bool shown_ = false;  // whether the live line is on the screen
  double step_s_ = 0;   // smoothed seconds per step; 0 before the first step
  int64_t next_draw_ns_ = 0;
};

}  // namespace mtrain::observe
