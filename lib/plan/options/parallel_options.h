// Options of context, tensor and expert parallelism: how the ranks that share a sequence, a layer
// or its experts divide it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/context_method.h"
#include "base/route_pattern.h"
#include "base/token_dispatch.h"

namespace mtrain::plan {

struct ContextOptions {
  std::vector<ContextMethod>
      methods;                  // one for all layers, or one for each; later layers have the last
  std::vector<int64_t> levels;  // sizes of the groups of a2a+p2p, the inner one first

  ContextMethod of_layer(int64_t layer) const {
    return methods[std::min(size_t(layer), methods.size() - 1)];
  }
  bool uses(ContextMethod method) const {
    for (const ContextMethod m : methods)
      if (m == method) return true;
    return false;
  }
};

struct TensorOptions {
  bool sequence_parallel = false;  // norms, residuals and dropout are sharded over tokens
};

struct ExpertOptions {
  TokenDispatch dispatcher = TokenDispatch::all_to_all;
  // Every rank sends each expert as many rows as its capacity. The last rows may be empty.
  bool pad_to_capacity = false;
  // A benchmark's fixed choices of experts. They belong to a run: a saved model uses its routers.
  RoutePattern pattern = RoutePattern::none;
};

}  // namespace mtrain::plan
