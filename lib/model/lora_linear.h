// A linear with frozen weights, and the adapters that are trained beside them:
// y = W x + scale B A x (Hu et al. 2021, "LoRA"; spec/lora.h).
//
// What a rank has of A (dim, I) and B (O, dim), and of their inner product u = scale A x (T, dim),
// for P ranks of tensor parallelism:
//
//                      A             B             u is                  under sequence parallelism
//   column-parallel    (dim, I)      (O / P, dim)  whole                 gathered from T / P rows
//   row-parallel       (dim, I / P)  (O, dim)      a sum over the ranks  T / P rows of that sum
//   whole              (dim, I)      (O, dim)      whole                 of the rank's T / P rows
//
// The gradient of u goes the other way. Ranks thus exchange dim numbers for each token, but none of
// a whole linear's.
#pragma once
#include <memory>

#include "model/tensor_parallel.h"
#include "spec/model_spec.h"

namespace mtrain::model {

// The side of a linear's weight that tensor parallelism divides. Every rank has all of a whole one.
enum class LinearSide : uint8_t { column, row, whole };

// Makes a linear of `tensor`. If the model has adapters, its weights are frozen, and it gets those
// adapters that `spec` lists.
std::unique_ptr<Linear> make_linear(ParamStore& params, const LinearSpec& spec, LinearSide side,
                                    const spec::ModelSpec& model,
                                    const std::shared_ptr<TensorParallel>& tensor);

}  // namespace mtrain::model
