// State beside parameters and moments that every rank has, alike on all of them.
#pragma once
#include <string>

#include "tensor/tensor.h"

namespace mtrain::checkpoint {

struct ReplicatedTensor {
  std::string name;  // the same under every layout
  Tensor value;      // fp32; loading writes to it
  bool of_model;     // what the model computes depends on it, as on its weights
};

}  // namespace mtrain::checkpoint
