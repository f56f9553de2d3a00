// Decides how many tokens the output layer computes at once, so that the logits of a whole
// micro-batch need not exist at the same time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "recipe/schema/train.h"

namespace mtrain::plan {

// Returns the bytes of logits, counted as fp32, that a rank computes at once: enough rows for
// efficient GEMMs, and few enough to matter little beside a model with such a vocabulary. Each
// chunk reads the output layer's weight twice and its gradient once, and writes the gradient. Below
// some thousands of rows a GPU's GEMMs take less time than that; a CPU's do below a hundred in
// fp32, and below some hundreds where they run on tiles.
constexpr int64_t logits_bytes(recipe::DeviceChoice device) {
  return device == recipe::DeviceChoice::cuda ? 2ll << 30 : 128ll << 20;
}

// Returns how many of T tokens have logits at once in `bytes` of fp32, for V columns of logits on a
// rank. Chunks have equal sizes, in whole tiles of a GPU's GEMMs if that changes little.
constexpr int64_t logits_rows(int64_t T, int64_t V, int64_t bytes) {
  constexpr int64_t kTile = 128;
  const int64_t rows = ceil_div(T, ceil_div(T * V * 4, bytes));
  return rows >= 8 * kTile ? std::min(T, round_up(rows, kTile)) : rows;
}

}  // namespace mtrain::plan
