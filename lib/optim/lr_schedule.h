// The learning rate of each step.
#pragma once
#include <cstdint>

#include "plan/options/optimizer_options.h"

namespace mtrain::optim {

// A pure function of the step: warm-up, an optional constant phase ("wsd"; Hu et al. 2024,
// MiniCPM), and decay to min_lr.
class LrSchedule {
 public:
  explicit LrSchedule(const plan::LrScheduleOptions& options) : o_(options) {}
  float at(int64_t step) const;  // the rate of update number `step`, counted from 1

 private:
  plan::LrScheduleOptions o_;
};

}  // namespace mtrain::optim
