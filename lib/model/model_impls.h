// How the parts of a model are carried out on this rank: parallelism and 8-bit GEMMs put theirs in
// the place of the plain ones of a single rank, which the defaults are.
#pragma once
#include <functional>
#include <memory>

#include "model/attention_core.h"
#include "model/fp8.h"
#include "model/tensor_parallel.h"

namespace mtrain::model {

struct ModelImpls {
  std::shared_ptr<TensorParallel> tensor = std::make_shared<TensorParallel>();
  std::function<std::unique_ptr<AttentionCore>(const HeadConfig&, int64_t layer)> attention_core;
  std::shared_ptr<Float8Scaling> fp8;  // not null: the layers' linears multiply in 8 bits
  int64_t logits_rows = 0;             // tokens whose logits exist at once; 0: all of a micro-batch
};

}  // namespace mtrain::model
