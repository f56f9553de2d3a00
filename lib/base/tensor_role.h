// What a trained tensor is to an optimizer, whatever its name and layout.
#pragma once
#include <cstdint>

namespace mtrain {

enum class TensorRole : uint8_t {
  matrix,  // the weight of a GEMM inside a layer; of experts, one matrix for each
  vector,  // a bias, or the scale of a norm
  table,   // rows that are looked up or scored: token table, learned positions, output layer
  state,   // no optimizer changes it: the selection bias of a router
};

}  // namespace mtrain
