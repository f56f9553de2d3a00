// Shows the progress of a run: permanent lines on stdout, and on a terminal a live line below them.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "observe/banner.h"

namespace mtrain::observe {

// The figures of one step. A figure that is NaN is not shown, except for the loss.
struct StepProgress {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0, total = 0;  // the step's number from 1, and the steps of the run
  double loss = kUnknown;
  std::vector<double> mtp_losses = {};  // of multi-token prediction
  double lr = kUnknown;
  double grad_norm = kUnknown;
  double loss_scale = kUnknown;
  double tokens_per_s = kUnknown;
  double mfu = kUnknown;     // between 0 and 1; a value above 1 is shown as a measurement error
  double eta_s = kUnknown;   // seconds left; ProgressLine computes it from step_s if unknown
  double step_s = kUnknown;  // seconds that this step took
};

// Returns a line of at most `width` columns; leaves out the least important fields until it fits. A
// width of 0 means no limit. A bar takes the columns that the other fields leave.
enum class Bar { no, yes };
std::string format_progress(const StepProgress& progress, int width, Bar bar = Bar::no);

struct ProgressOptions {
  int out = 1;                      // gets the permanent lines
  int err = 2;                      // gets the live line, and replies to keys
  std::optional<bool> live, color;  // unset: if the terminal supports it
  double min_interval_s = 0.05;     // the shortest time between two drawings of the live line
  // Without a live line, an activity gets a line after quiet_s, and then every quiet_again_s.
  double quiet_s = 5, quiet_again_s = 60;
};

// Several threads may use it. While it lives, log lines appear above its live line and do not break
// it. All permanent lines are also written to the log's record, with all of their fields.
class ProgressLine : private log::Overlay {
 public:
  explicit ProgressLine(ProgressOptions options = {});
  ~ProgressLine() override;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows a step in the live line. With `stays`, also prints a permanent line.
  void update(StepProgress progress, bool stays);
  // Shows an activity between steps, such as "reading weights 34 %", until idle() or update().
  // `since` is how long it has taken before the first call.
  void activity(std::string_view text, std::chrono::duration<double> since = {});
  void idle();
  // Returns lines of at most `columns` columns; 0 means no limit.
  using Layout = std::function<std::string(int columns)>;
  void note(std::string_view lines);  // prints permanent lines above the live line
  void note(const Layout& lines);     // the same for a table
  void tell(std::string_view line);   // the same on stderr
  void tell(const Layout& lines);
  void banner(std::string_view title, const std::vector<BannerRow>& rows);
  bool live() const { return live_; }
  void keep();    // prints a permanent line for the last step, if it had none
  void finish();  // does the same, and removes the live line

 private:
  void interrupt(const std::function<void()>& write_line) override;
  void stay(int fd, const Layout& lines);
  // These are called with the mutex held.
  void print(int fd, std::string_view lines);
  void draw();
  void clear();
  bool draws_now();
  void tell_of_activities();  // in a thread, until the end
  std::string step_line(const StepProgress& progress) const;

  ProgressOptions options_;
  bool live_, color_;
  std::mutex mutex_;
  std::optional<StepProgress> last_;
  bool stays_ = false;    // whether last_ has a permanent line
  std::string activity_;  // shown instead of last_
  bool shown_ = false;    // whether the live line is on the screen
  double step_s_ = 0;     // smoothed seconds per step; 0 before the first step
  int64_t next_draw_ns_ = 0;
  // Without a live line a thread prints long activities, which may not report anything themselves.
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point next_quiet_;  // when the activity gets a line
  bool ends_ = false;
  std::thread teller_;
};

}  // namespace mtrain::observe
