// Decides which gradients are spikes: their norm is many times the median of the norms before. All
// ranks see the same norms, and decide alike.
#pragma once
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>

#include "plan/options/train_options.h"

namespace mtrain::optim {

class SpikeGuard {
 public:
  static constexpr size_t kWindow = 128, kLeast = 16;  // norms of the median
  static constexpr int64_t kMostInRow = 5;

  explicit SpikeGuard(const plan::SpikeOptions& options) : options_(options) {}

  // The largest norm of the next step that is not a spike; infinite while the median is unknown.
  // The device compares each fp32 norm with it, as exceeds() does.
  double limit() const { return limit_; }
  bool exceeds(float norm) const { return std::isfinite(norm) && double(norm) > limit_; }
  double median() const { return median_; }  // 0 if unknown

  void accepted(float norm);  // of a step that has updated the weights
  void skipped() { ++in_row_; }
  int64_t in_row() const { return in_row_; }  // skipped steps up to the last one

  // As one line of text, from which a resumed run decides alike; empty if no step can be a spike or
  // be skipped. load() throws UserError if the text is not such a line.
  std::string save() const;
  void load(const std::string& text);

 private:
  void set_limit();

  plan::SpikeOptions options_;
  std::deque<float> norms_;  // the oldest first
  int64_t in_row_ = 0;
  double median_ = 0, limit_ = kNone;
  static constexpr double kNone = std::numeric_limits<double>::infinity();
};

}  // namespace mtrain::optim
