// Decides whether a run continues after a checkpoint could not be saved (checkpoint.on_error).
#pragma once
#include <string>

#include "base/error.h"

namespace mtrain::run {

// All ranks call it alike.
class SaveFailures {
 public:
  static constexpr int kMostInRow = 3;

  // `stop`: the first failure ends the run.
  explicit SaveFailures(bool stop) : stop_(stop) {}

  void saved() { in_row_ = 0; }
  // Counts a failed save. Returns a line about it for the log if the run continues. Throws RunError
  // if it ends: at the third failure in a row, or `last`, when no later save could repair it.
  // `newest` is the newest checkpoint, or empty.
  std::string failed(const Error& error, int64_t step, bool last, const std::string& newest);

 private:
  const bool stop_;
  int in_row_ = 0;
};

}  // namespace mtrain::run
