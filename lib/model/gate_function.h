// The gate's function of the gated MLP, which dense layers and experts share.
#pragma once
#include "model/config.h"
#include "ops/ops.h"

namespace mtrain::model {

inline ops::GateFunction gate_function(const GptConfig& c) {
  return c.gelu_gate ? ops::GateFunction::gelu_tanh : ops::GateFunction::silu;
}

}  // namespace mtrain::model
