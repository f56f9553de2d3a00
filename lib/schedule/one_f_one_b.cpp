#include <algorithm>

#include "schedule/generators.h"

namespace mtrain::schedule {

ActionList one_f_one_b(const ScheduleSize& size, int64_t rank) {
  const int64_t M = size.micro_batches;
  const int64_t warm_up = std::min(M, size.pp - 1 - rank + (size.moe_overlap ? 1 : 0));
  ActionList list;
  for (int64_t m = 0; m < warm_up; ++m) list.push_back({ActionKind::F, rank, m});
  for (int64_t m = warm_up; m < M; ++m) {
    list.push_back({ActionKind::F, rank, m});
    list.back().overlaps_next = size.moe_overlap;
    list.push_back({ActionKind::B, rank, m - warm_up});
  }
  for (int64_t m = M - warm_up; m < M; ++m) list.push_back({ActionKind::B, rank, m});
  return list;
}

}  // namespace mtrain::schedule
