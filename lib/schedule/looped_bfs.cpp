#include "schedule/generators.h"

namespace mtrain::schedule {

ActionList looped_bfs(const ScheduleSize& size, int64_t rank) {
  const int64_t V = size.stages_per_rank, M = size.micro_batches;
  ActionList list;
  for (int64_t chunk = 0; chunk < V; ++chunk)
    for (int64_t m = 0; m < M; ++m) list.push_back({ActionKind::F, chunk * size.pp + rank, m});
  for (int64_t chunk = V - 1; chunk >= 0; --chunk)
    for (int64_t m = M - 1; m >= 0; --m) list.push_back({ActionKind::B, chunk * size.pp + rank, m});
  return list;
}

}  // namespace mtrain::schedule
