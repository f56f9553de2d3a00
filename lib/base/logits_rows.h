// How the output layer's work is cut: the model and the plan of its memory agree on it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/math.h"

namespace mtrain {

// Rows of T whose logits exist at once, in `bytes` of fp32, V columns of them on a rank: pieces of
// equal size, in whole tiles of a GPU's matmuls where that changes little.
constexpr int64_t logits_rows(int64_t T, int64_t V, int64_t bytes) {
  constexpr int64_t kTile = 128;
  const int64_t rows = ceil_div(T, ceil_div(T * V * 4, bytes));
  return rows >= 8 * kTile ? std::min(T, round_up(rows, kTile)) : rows;
}

}  // namespace mtrain
