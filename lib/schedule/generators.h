// The published schedules, one file each. A function lists what one rank computes, in order, for P
// ranks, V stages per rank and M micro-batches. with_messages() inserts sends and receives.
#pragma once
#include "schedule/action.h"

namespace mtrain::schedule {

struct ScheduleSize {
  int64_t pp = 1, stages_per_rank = 1, micro_batches = 1;
  // Interleaved schedules run this many micro-batches of a stage in a row (Megatron's
  // microbatch_group_size_per_vp_stage). 0 means torch's choice: max(1, M div P) equal rounds.
  int64_t group = 0;
  // 1F1B, plain and interleaved: each forward after the warm-up runs together with a backward, and
  // one more warm-up forward keeps the two independent (Megatron-Core's combined 1F1B).
  bool moe_overlap = false;
};
// Returns `group`, or torch's choice if it is 0.
int64_t group_of(const ScheduleSize& size);

// All forwards, then all backwards. Huang et al. 2019, "GPipe", section 2.
ActionList gpipe(const ScheduleSize& size, int64_t rank);

// One forward, one backward after a warm-up of P-1-rank forwards. Narayanan et al. 2021, "Efficient
// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2.1
// (PipeDream-Flush).
ActionList one_f_one_b(const ScheduleSize& size, int64_t rank);

// 1F1B over V stages per rank, group by group. The same paper, section 2.2.2. Lamy-Poirier 2022
// calls it depth-first; dfs is another name of this schedule.
ActionList interleaved_1f1b(const ScheduleSize& size, int64_t rank);
// Returns how many forwards of `rank` come before its first backward, without the forward of that
// backward's own pair.
int64_t interleaved_warm_up(const ScheduleSize& size, int64_t rank);

// Every stage runs all micro-batches before the rank's next stage begins. Lamy-Poirier 2022,
// "Breadth-First Pipeline Parallelism".
ActionList looped_bfs(const ScheduleSize& size, int64_t rank);

// ZB-H1 (V = 1), and its interleaved form: the interleaved order with half its skew between ranks.
// Rank r delays its weight gradients by r. Qi et al. 2023, "Zero Bubble Pipeline Parallelism",
// section 2.1.
ActionList zero_bubble(const ScheduleSize& size, int64_t rank);

// ZB-V: two stages per rank, stage i beside its mirror. Qi et al. 2024, "Pipeline Parallelism with
// Controllable Memory".
ActionList v_schedule(const ScheduleSize& size, int64_t rank);

// DualPipe on the V placement, without a second copy of the weights. DeepSeek-AI 2024, "DeepSeek-V3
// Technical Report", section 3.2.1, halved as Sea AI Lab 2025 ("DualPipe could be better without
// the Dual") describes. Most forwards run together with a backward.
ActionList dualpipev(const ScheduleSize& size, int64_t rank);

// The op-th forward of a rank in interleaved order. `chunk` numbers the rank's own stages from 0,
// as Megatron's model chunks do. Backwards take them in reverse order: V-1-chunk.
struct InterleavedOp {
  int64_t chunk, micro_batch;
};
InterleavedOp interleaved_op(const ScheduleSize& size, int64_t op);

}  // namespace mtrain::schedule
