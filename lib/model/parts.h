// What parallelism puts in the place of a model's plain parts. Absent: the plain one, of one rank.
#pragma once
#include <functional>
#include <memory>

#include "model/attention_core.h"
#include "model/fp8.h"
#include "model/tensor_parallel.h"

namespace mtrain {

struct ModelParts {
  std::shared_ptr<TensorParallel> tensor = std::make_shared<TensorParallel>();
  std::function<std::unique_ptr<AttentionCore>(const HeadConfig&, int64_t layer)> attention_core;
  std::shared_ptr<Float8Scaling> fp8;  // the layers' linears multiply in 8 bits
};

}  // namespace mtrain
