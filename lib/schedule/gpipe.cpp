#include "schedule/generators.h"

namespace mtrain::schedule {

ActionList gpipe(const ScheduleSize& size, int64_t rank) {
  ActionList list;
  for (const ActionKind kind : {ActionKind::F, ActionKind::B})
    for (int64_t m = 0; m < size.micro_batches; ++m) list.push_back({kind, rank, m});
  return list;
}

}  // namespace mtrain::schedule
