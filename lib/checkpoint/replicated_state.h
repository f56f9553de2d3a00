// State other than parameters and moments that is the same on every rank.
#pragma once
#include <string>

#include "tensor/tensor.h"

namespace mtrain::checkpoint {

struct ReplicatedTensor {
  std::string name;  // the same under every layout
  Tensor value;      // fp32; loading writes to it
  bool of_model;     // the model's outputs depend on it, as they depend on the weights
};

}  // namespace mtrain::checkpoint
