// The role of a model's tensor for an optimizer, independent of its name and layout.
#pragma once
#include <cstdint>

namespace mtrain {

enum class TensorRole : uint8_t {
  matrix,  // the weight of a GEMM inside a layer; for experts, one matrix per expert
  vector,  // a bias, or the scale of a norm
  table,   // rows that are looked up or scored: token table, learned positions, output layer
  state,   // not a parameter, and in no ParamStore: the selection bias of a router
};

}  // namespace mtrain
