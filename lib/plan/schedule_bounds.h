// A ScheduleShape says which pipeline schedule a recipe asks for, and with which sizes. Its costs
// follow from the formulas of schedule/catalog.h: activations in flight, and idle time. Idle time
// assumes that forward, input gradient and weight gradient take equal time, and communication none.
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
  // Interleaved schedules: how many micro-batches run through a stage one after the other. 0:
  // micro_batches / (micro_batches / pp), rounded down.
  int64_t group = 0;
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

// Memory of a rank's chunks. The unit is the mean memory of a chunk that waits for its input
// gradient.
struct ChunkParts {
  // Memory of a chunk of each stage of the model, in the same unit. An empty list has 1 for all
  // stages.
  std::vector<double> sizes = {};
  double wgrad_inputs = 0;  // a chunk that waits for its weight gradient
  // What a forward and the backward that is paired with it need together, beyond the chunk of the
  // backward. The forward fills, layer by layer, the memory that the backward frees.
  double pair = 0;
  double unsent = 0;  // weight gradients that wait until a backward's gradient is sent
};
// Returns the most memory that `pp_rank` needs for chunks at once.
double chunks_held(const ScheduleShape& shape, int64_t pp_rank, const ChunkParts& parts);

// Returns the idle fraction of a step's time: by formula, or for a table by a simulation in which
// forward, input gradient and weight gradient take equal time.
double bubble_fraction(const ScheduleShape& shape);

// Returns the stages that `pp_rank` holds, in the order of the model. V-shaped schedules place
// stage i and its mirror image on one rank. In the others stage i is on rank i modulo pp.
std::vector<int64_t> stages_of_rank(const ScheduleShape& shape, int64_t pp_rank);

}  // namespace mtrain::plan
