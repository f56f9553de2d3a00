// The scale of the loss in fp16. It is raised and lowered to keep gradients from overflowing and
// from becoming 0 (Micikevicius et al. 2018, "Mixed precision training"). The scale changes as in
// Megatron-LM. Unlike there, an overflow that no lower scale can fix ends the run.
#pragma once
#include <cstdint>
#include <string>

#include "plan/options/optimizer_options.h"

namespace mtrain::optim {

class LossScaler {
 public:
  explicit LossScaler(const plan::LossScaleOptions& options);

  bool on() const { return options_.on; }
  double scale() const { return state_.scale; }  // of the next step; 1 if not on

  // Updates the scale after a step. Every rank must pass the same arguments. Throws RunError for an
  // overflow that no lower scale can fix: the scale has its minimum, or is fixed and has overflowed
  // in kMaxFixed steps in a row.
  void update(int64_t step, bool overflow);
  static constexpr int64_t kMaxFixed = 10;

  // The state from which a resumed run continues.
  struct State {
    double scale = 1;
    int64_t clean_steps = 0;  // steps since the scale last grew or gradients last overflowed
    int64_t hysteresis = 0;   // overflows until the scale falls; from 0 on each one halves it
    int64_t overflows = 0;    // overflows in a row, up to the last step
    bool operator==(const State&) const = default;
  };
  const State& state() const { return state_; }
  // A fixed scale stays at the options' value.
  void restore(const State& state);

  std::string save() const;            // as one line of text; load() restores it exactly
  void load(const std::string& text);  // throws UserError if the text is not such a line

 private:
  plan::LossScaleOptions options_;
  State state_;
};

}  // namespace mtrain::optim
