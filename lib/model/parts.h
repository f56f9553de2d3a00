// What parallelism puts in the place of a model's plain parts. Absent: the plain one, of one rank.
#pragma once
#include <functional>
#include <memory>

#include "model/attention_core.h"

namespace mtrain {

struct ModelParts {
  std::function<std::unique_ptr<AttentionCore>(const HeadConfig&, int64_t layer)> attention_core;
};

}  // namespace mtrain
