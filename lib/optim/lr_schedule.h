// Learning-rate schedules: pure functions of the step.
#pragma once
#include <cstdint>

#include "recipe/optimizer.h"

namespace mtrain {

// Linear warm-up from 0 over warmup_steps, then the style's way down to min_lr at decay_steps,
// min_lr from there on. wsd (Hu et al. 2024, MiniCPM): constant until decay_steps -
// wsd_decay_steps, then down by wsd_decay_style.
class LrSchedule {
 public:
  LrSchedule(const OptimizerConfig& optimizer, const LrSchedulerConfig& scheduler,
             int64_t train_steps);
  float at(int64_t step) const;  // of update number `step`, counted from 1

 private:
  LrSchedulerConfig c_;
  double lr_;
  int64_t decay_steps_, wsd_decay_steps_;
};

}  // namespace mtrain
