// The share of a data set's documents that a run reads.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mtrain {

// The documents from begin * count to end * count, in their order. Both bounds are rounded to the
// nearest integer, halves to the even one, as Megatron-Core does.
struct DocumentShare {
  double begin = 0, end = 1;

  // Returns the first document, and the one after the last.
  std::pair<int64_t, int64_t> range(int64_t count) const {
    return {std::llrint(begin * double(count)), std::llrint(end * double(count))};
  }
};

// The parts of Megatron's `split`, in its order.
enum class SplitPart : size_t { train, validation, test };

// Returns the share of that part. `split` has up to three numbers, whose sum is above 0; missing
// ones are 0. An empty split is all documents for every part.
inline DocumentShare document_share(const std::vector<double>& split, SplitPart part) {
  if (split.empty()) return {};
  double sum = 0, begin = 0;
  for (const double s : split) sum += s;
  // Adds up quotients, as Megatron does: other orders of these operations round differently.
  for (size_t i = 0; i < size_t(part) && i < split.size(); ++i) begin += split[i] / sum;
  return {begin, begin + (size_t(part) < split.size() ? split[size_t(part)] / sum : 0)};
}

}  // namespace mtrain
