// The pipeline schedules, by the names that recipes give them: mtrain's own, then other systems'.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class ScheduleId {
  one_f_one_b,
  gpipe,
  interleaved_1f1b,
  looped_bfs,
  dfs,
  v_schedule,
  zero_bubble,
  dualpipev
};
constexpr auto enum_names(ScheduleId) {
  using S = ScheduleId;
  return std::array{EnumName{S::one_f_one_b, "1f1b"},
                    EnumName{S::gpipe, "gpipe"},
                    EnumName{S::interleaved_1f1b, "interleaved_1f1b"},
                    EnumName{S::looped_bfs, "looped_bfs"},
                    EnumName{S::dfs, "dfs"},
                    EnumName{S::v_schedule, "v_schedule"},
                    EnumName{S::zero_bubble, "zero_bubble"},
                    EnumName{S::dualpipev, "dualpipev"},
                    EnumName{S::v_schedule, "ZBVZeroBubble"},
                    EnumName{S::zero_bubble, "InterleavedZeroBubble"},
                    EnumName{S::one_f_one_b, "Schedule1F1B"},
                    EnumName{S::gpipe, "ScheduleGPipe"},
                    EnumName{S::interleaved_1f1b, "ScheduleInterleaved1F1B"},
                    EnumName{S::looped_bfs, "ScheduleLoopedBFS"},
                    EnumName{S::v_schedule, "ScheduleZBVZeroBubble"},
                    EnumName{S::zero_bubble, "ScheduleInterleavedZeroBubble"},
                    EnumName{S::dualpipev, "ScheduleDualPipeV"}};
}

}  // namespace mtrain
