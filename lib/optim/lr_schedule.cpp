#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mtrain {

namespace {
// What is left of the way from lr to min_lr after `share` in [0, 1] of the decay.
double left_after(WsdDecayStyle style, double share) {
  switch (style) {
    case WsdDecayStyle::linear: return 1 - share;
    case WsdDecayStyle::cosine: return 0.5 * (1 + std::cos(std::numbers::pi * share));
    case WsdDecayStyle::exponential: return 2 * std::pow(0.5, share) - 1;
    case WsdDecayStyle::minus_sqrt: return 1 - std::sqrt(share);
  }
  return 0;
}
}  // namespace

LrSchedule::LrSchedule(const OptimizerConfig& optimizer, const LrSchedulerConfig& scheduler,
                       int64_t train_steps)
    : c_(scheduler),
      lr_(optimizer.lr),
      decay_steps_(scheduler.decay_steps.value_or(train_steps)),
      wsd_decay_steps_(scheduler.wsd_decay_steps.value_or(0)) {}

float LrSchedule::at(int64_t step) const {
  if (step <= c_.warmup_steps) return float(lr_ * double(step) / double(c_.warmup_steps));
  if (c_.style == LrStyle::constant) return float(lr_);
  if (step >= decay_steps_) return float(c_.min_lr);
  const bool wsd = c_.style == LrStyle::wsd;
  const int64_t start =
      wsd ? std::max(c_.warmup_steps, decay_steps_ - wsd_decay_steps_) : c_.warmup_steps;
  if (step <= start) return float(lr_);
  const double share = double(step - start) / double(decay_steps_ - start);
  const WsdDecayStyle shape = wsd                           ? c_.wsd_decay_style
                              : c_.style == LrStyle::linear ? WsdDecayStyle::linear
                                                            : WsdDecayStyle::cosine;
  return float(c_.min_lr + (lr_ - c_.min_lr) * left_after(shape, share));
}

}  // namespace mtrain
