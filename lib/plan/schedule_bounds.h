// A ScheduleShape says which pipeline schedule a recipe asks for, and in which sizes. Its costs
// follow from the formulas of schedule/catalog.h: activations in flight, and idle time if forward,
// input gradient and weight gradient take equal time and communication takes none.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/schedule_id.h"
#include "plan/overlap.h"

namespace mtrain::schedule {
struct Schedule;
struct ScheduleSize;
}  // namespace mtrain::schedule

namespace mtrain::plan {

struct ScheduleShape {
  ScheduleId schedule{};  // 1f1b
  int64_t pp = 1, stages_per_rank = 1, micro_batches = 1;
  int64_t group = 0;  // interleaved: micro-batches in a row per stage; 0: M / rounds
  // Forwards run together with backwards, for experts or in the fine-grained 1F1B. One more warm-up
  // forward keeps the two independent.
  bool moe_overlap = false;
  // A schedule from a file, which replaces `schedule`; null if there is none.
  std::shared_ptr<const schedule::Schedule> table;
};
// Reads the schedule's file if the recipe names one; throws UserError for a bad file.
ScheduleShape schedule_shape(const recipe::Recipe& recipe, const Layout& layout,
                             const Overlap& overlap);
schedule::ScheduleSize schedule_size(const ScheduleShape& shape);

// Returns the most chunks (a stage's layers for one micro-batch) whose activations `pp_rank` holds
// at once, counted from forward to weight gradient.
int64_t chunks_in_flight(const ScheduleShape& shape, int64_t pp_rank);

// Memory in chunks. A chunk that waits for its input gradient counts 1.
struct ChunkParts {
  double behind = 0;  // of a chunk that waits for its weight gradient
  // A forward that runs together with a backward fills what that frees, layer by layer: what both
  // need more than one of them.
  double pair = 0;
  double unsent = 0;  // of weight gradients that wait behind a backward until its gradient is sent
};
// Returns the most memory that `pp_rank` needs for chunks at once.
double chunks_held(const ScheduleShape& shape, int64_t pp_rank, const ChunkParts& parts);

// Returns idle time / whole time of a step, by formula, or for a table by playing its lists with
// F = I = W.
double bubble_fraction(const ScheduleShape& shape);

// Returns the stages that `pp_rank` holds, in the order of the model. Schedules with a V place
// stage i and its mirror on one rank; in the others the stages go round the ranks.
std::vector<int64_t> stages_of_rank(const ScheduleShape& shape, int64_t pp_rank);

}  // namespace mtrain::plan
