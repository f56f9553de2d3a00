#include <algorithm>

#include "schedule/generators.h"

namespace mtrain::schedule {

int64_t group_of(const ScheduleSize& size) {
  if (size.group > 0) return size.group;
  return size.micro_batches / std::max<int64_t>(1, size.micro_batches / size.pp);
}

InterleavedOp interleaved_op(const ScheduleSize& size, int64_t op) {
  const int64_t N = group_of(size);
  const int64_t group = op / (N * size.stages_per_rank);
  const int64_t inside = op % (N * size.stages_per_rank);
  const int64_t n = std::min(N, size.micro_batches - group * N);  // the last group may be shorter
  return {inside / n, group * N + inside % n};
}

int64_t interleaved_warm_up(const ScheduleSize& size, int64_t rank) {
  return std::min(size.stages_per_rank * size.micro_batches,
                  (size.stages_per_rank - 1) * group_of(size) + 2 * (size.pp - 1 - rank) +
                      (size.moe_overlap ? 1 : 0));
}

ActionList interleaved_1f1b(const ScheduleSize& size, int64_t rank) {
  const int64_t P = size.pp, V = size.stages_per_rank, all = V * size.micro_batches;
  const int64_t warm_up = interleaved_warm_up(size, rank);
  ActionList list;
  const auto forward = [&](int64_t op) {
    const auto [chunk, m] = interleaved_op(size, op);
    list.push_back({ActionKind::F, chunk * P + rank, m});
  };
  const auto backward = [&](int64_t op) {
    const auto [chunk, m] = interleaved_op(size, op);
    list.push_back({ActionKind::B, (V - 1 - chunk) * P + rank, m});
  };
  for (int64_t op = 0; op < warm_up; ++op) forward(op);
  for (int64_t op = warm_up; op < all; ++op) {
    forward(op);
    list.back().overlaps_next = size.moe_overlap;
    backward(op - warm_up);
  }
  for (int64_t op = all - warm_up; op < all; ++op) backward(op);
  return list;
}

}  // namespace mtrain::schedule
