#include "optim/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace mtrain::optim {

namespace {
// Returns the remaining fraction of lr - min_lr after the fraction `share` in [0, 1] of the decay.
double left_after(LrDecay decay, double share) {
  switch (decay) {
    case LrDecay::constant: return 1;
    case LrDecay::linear: return 1 - share;
    case LrDecay::cosine: return 0.5 * (1 + std::cos(std::numbers::pi * share));
    case LrDecay::exponential: return 2 * std::pow(0.5, share) - 1;
    case LrDecay::minus_sqrt: return 1 - std::sqrt(share);
  }
  return 0;
}
}  // namespace

float LrSchedule::at(double step) const {
  const auto begin = double(o_.decay_begin), end = double(o_.decay_end);
  if (step <= double(o_.warmup_steps))
    return float(o_.init_lr + (o_.lr - o_.init_lr) * step / double(o_.warmup_steps));
  if (o_.decay == LrDecay::constant) return float(o_.lr);
  if (step >= end) return float(o_.min_lr);
  if (step <= begin) return float(o_.lr);
  const double share = (step - begin) / (end - begin);
  return float(o_.min_lr + (o_.lr - o_.min_lr) * left_after(o_.decay, share));
}

}  // namespace mtrain::optim
