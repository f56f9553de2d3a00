// The gate's function of the gated MLP, which dense layers and experts share.
#pragma once
#include "ops/activation.h"
#include "spec/layer_spec.h"

namespace mtrain::model {

inline ops::GateFunction gate_function(spec::Activation a) {
  MT_CHECK(spec::is_gated(a), "a gated MLP without a gate");
  return a == spec::Activation::geglu ? ops::GateFunction::gelu_tanh : ops::GateFunction::silu;
}

}  // namespace mtrain::model
