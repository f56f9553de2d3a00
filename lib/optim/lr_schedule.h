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
  // The rate of update number `step`, counted from 1. It is a fraction if earlier updates had
  // batches of another size.
  float at(double step) const;

 private:
  plan::LrScheduleOptions o_;
};

}  // namespace mtrain::optim
