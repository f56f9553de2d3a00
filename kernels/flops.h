// The floating-point operations of kernels that multiply matrices: a multiplication and an addition
// count as two. All other kernels are bound by memory, and have no flops_of().
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/grouped_matmul.h"
#include "kernels/matmul.h"

namespace mtrain::kernels {

inline int64_t flops_of(const Matmul& m) { return 2 * m.M * m.N * m.K; }
// Rows after the last expert's count, too: only the device knows how many there are.
inline int64_t flops_of(const GroupedMatmul& m) { return 2 * m.R * m.N * m.K; }
inline int64_t flops_of(const GroupedWeightGrad& m) { return 2 * m.R * m.M * m.N; }

// Returns how many pairs of a query and a key of one sequence and head attend to each other. Only
// the device knows the lengths of documents, so they count as equally long here.
inline int64_t attended_pairs(const AttentionShape& s) {
  // Returns the sum of min(t, keys) for t from 1 to `last`.
  const auto sum_up_to = [](int64_t last, int64_t keys) {
    const int64_t rising = std::clamp<int64_t>(last, 0, keys);
    return rising * (rising + 1) / 2 + std::max<int64_t>(0, last - keys) * keys;
  };
  const int64_t documents =
      s.q_documents.begin ? std::max<int64_t>(1, s.q_documents.begin.count) : 1;
  const int64_t rows = s.Sq / documents, keys = s.Skv / documents;
  // Row i attends to the keys before end = i + start + 1, and not to the first end - window keys.
  const int64_t start = s.q_documents.begin ? keys - rows : s.q_start;
  int64_t pairs = s.causal ? sum_up_to(start + rows, keys) - sum_up_to(start, keys) : rows * keys;
  if (s.window > 0)
    pairs -= sum_up_to(start - s.window + rows, keys) - sum_up_to(start - s.window, keys);
  return documents * pairs;
}

// Scores, and the sum of values.
inline int64_t flops_of(const AttentionForward& a) {
  const AttentionShape& s = a.shape;
  return 2 * s.B * s.A * attended_pairs(s) * (s.D + s.value_dim());
}
// The scores once more, the gradients of probabilities and of v, and those of q and k.
inline int64_t flops_of(const AttentionBackward& a) {
  const AttentionShape& s = a.shape;
  return 2 * s.B * s.A * attended_pairs(s) * (3 * s.D + 2 * s.value_dim());
}

}  // namespace mtrain::kernels
