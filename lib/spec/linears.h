// Finds out which tensors of a layer are the weights of linears.
#pragma once
#include "spec/tensors.h"

namespace mtrain::spec {

// Whether the tensor is the weight of a linear of which each tensor-parallel rank has all: one that
// makes a latent, or the projection of multi-token prediction.
bool is_whole_linear(const TensorSpec& tensor);

// Whether the GEMMs of a layer in 8 bits read the tensor in 8 bits. Routers, gates and adapters
// stay in 16 bits.
bool is_quantized(const TensorSpec& tensor);

}  // namespace mtrain::spec
