// Decides for how many tokens the output layer computes logits at once. The logits of a full
// micro-batch then need not exist at the same time.
//
// The number of chunks decides the order in which the output layer's gradient is added, and
// therefore its last bits. It follows from the recipe alone, not from the memory of a device: a
// recipe then gives the same bits on GPUs that differ only in memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/math.h"
#include "recipe/schema/train.h"

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan;

// Returns the bytes of logits, counted as fp32, that a rank computes at once. By default they hold
// enough rows for efficient GEMMs, and are small beside a model with such a vocabulary. Each chunk
// reads the output layer's weight twice and its gradient once, and writes the gradient. If a chunk
// has too few rows, its GEMMs take less time than this traffic. Too few are less than some
// thousands on a GPU. On a CPU they are less than a hundred in fp32, and less than some hundreds if
// the GEMMs run on tiles.
inline int64_t logits_bytes(const recipe::TrainConfig& train) {
  if (train.logits_gb) return std::max<int64_t>(1, int64_t(*train.logits_gb * 1e9));
  return train.device == recipe::DeviceChoice::cuda ? 2ll << 30 : 128ll << 20;
}

// Returns how many of T tokens have logits at once in `bytes` of fp32, for V columns of logits on a
// rank. All chunks have equal sizes. Large chunks are rounded up to full tiles of a GPU's GEMMs.
constexpr int64_t logits_rows(int64_t T, int64_t V, int64_t bytes) {
  constexpr int64_t kTile = 128;
  const int64_t rows = ceil_div(T, ceil_div(T * V * 4, bytes));
  return rows >= 8 * kTile ? std::min(T, round_up(rows, kTile)) : rows;
}

// Sets plan.logits_rows.
void resolve_logits_rows(const recipe::Recipe& recipe, RunPlan& plan);

// Returns the chunks and their memory, and the setting that computes all logits at once, with the
// memory that this needs: "3 chunks of 2816 tokens, ...". Reads the plan's memory.
std::string logits_text(const recipe::Recipe& recipe, const RunPlan& plan);

}  // namespace mtrain::plan
