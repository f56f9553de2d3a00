#include <algorithm>

#include "schedule/generators.h"

namespace mtrain::schedule {

ActionList zero_bubble(const ScheduleSize& size, int64_t rank) {
  const int64_t P = size.pp, V = size.stages_per_rank, all = V * size.micro_batches;
  const int64_t warm_up = std::min(all, (V - 1) * group_of(size) + P - 1 - rank);
  ActionList list;
  const auto forward = [&](int64_t op) {
    const auto [chunk, m] = interleaved_op(size, op);
    list.push_back({ActionKind::F, chunk * P + rank, m});
  };
  const auto half_backward = [&](ActionKind kind, int64_t op) {
    const auto [chunk, m] = interleaved_op(size, op);
    list.push_back({kind, (V - 1 - chunk) * P + rank, m});
  };
  for (int64_t op = 0; op < warm_up; ++op) forward(op);
  for (int64_t op = 0; op < all; ++op) {
    if (op + warm_up < all) forward(op + warm_up);
    half_backward(ActionKind::I, op);
    if (op >= rank) half_backward(ActionKind::W, op - rank);
  }
  for (int64_t op = std::max<int64_t>(0, all - rank); op < all; ++op)
    half_backward(ActionKind::W, op);
  return list;
}

}  // namespace mtrain::schedule
