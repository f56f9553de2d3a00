#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "base/error.h"

namespace mtrain::optim {

LossScaler::LossScaler(const plan::LossScaleOptions& options) : options_(options) {
  if (!options.on) return;
  state_ = {.scale = options.initial, .hysteresis = options.hysteresis};
}

void LossScaler::update(int64_t step, bool overflow) {
  if (!options_.on) return;
  State& s = state_;
  if (!overflow) {
    s.overflows = 0;
    if (++s.clean_steps < options_.window || !options_.dynamic) return;
    s.clean_steps = 0;
    s.hysteresis = options_.hysteresis;
    s.scale *= 2;
    return;
  }
  s.clean_steps = 0;
  ++s.overflows;
  const char* hint =
      "a layer's activations or gradients grow beyond fp16's 65504: lower optimizer.lr, look at "
      "grad_norm in metrics.jsonl, or use mixed_precision: bf16_mixed";
  if (!options_.dynamic) {
    if (s.overflows >= kMaxFixed)
      throw RunError(fmt::format("step {}: gradients overflowed fp16 in {} steps in a row, under "
                                 "the fixed loss scale {}",
                                 step, s.overflows, s.scale),
                     "choose a smaller mixed_precision.loss_scale, or do not set it: the loss "
                     "scale is then dynamic");
    return;
  }
  if (--s.hysteresis > 0) return;
  if (s.scale <= options_.min)
    throw RunError(
        fmt::format(
            "step {}: gradients overflowed fp16 although the loss scale is at its minimum, {}",
            step, options_.min),
        hint);
  s.scale = std::max(s.scale / 2, options_.min);
}

void LossScaler::restore(const State& state) {
  if (!options_.on) return;
  const double scale = options_.dynamic ? std::max(state.scale, options_.min) : options_.initial;
  state_ = state;
  state_.scale = scale;
}

std::string LossScaler::save() const {
  return fmt::format("{} {} {} {}", state_.scale, state_.clean_steps, state_.hysteresis,
                     state_.overflows);
}

void LossScaler::load(const std::string& text) {
  std::istringstream in(text);
  State s;
  if (!(in >> s.scale >> s.clean_steps >> s.hysteresis >> s.overflows) || !(s.scale > 0) ||
      !std::isfinite(s.scale))
    throw UserError(fmt::format("`{}` is not the state of a loss scale", text),
                    "the checkpoint is damaged: load another");
  restore(s);
}

}  // namespace mtrain::optim
