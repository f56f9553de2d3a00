// The catalog lists the schedules by name, each with the sizes that it can have, its list of
// actions and its published costs.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/schedule_id.h"
#include "schedule/generators.h"

namespace mtrain::schedule {

// When a schedule computes weight gradients, relative to the input gradients of the same chunk.
enum class WgradTiming { with_input_gradients, some_later, all_later };

struct ScheduleKind {
  ScheduleId id;
  std::string_view name = enum_name(id);
  int64_t min_stages, max_stages;  // per rank
  int64_t min_micro_batches = 0;   // per rank
  bool in_groups = false;          // it orders micro-batches in groups
  bool v = false;  // stage i and its mirror share a rank; otherwise stage i is on rank i % pp
  WgradTiming wgrads = WgradTiming::with_input_gradients;
  ActionList (*list)(const ScheduleSize&, int64_t rank);
  // The largest number of chunks that the rank has in flight, if there are enough micro-batches.
  int64_t (*chunks)(const ScheduleSize&, int64_t rank);
  double (*idle)(const ScheduleSize&);  // idle time / busy time
  // Forwards of the rank that take turns with another micro-batch's backward, segment by segment,
  // in the order for overlapped experts; null if the schedule has no such order.
  int64_t (*pairs)(const ScheduleSize&, int64_t rank) = nullptr;
};
const std::vector<ScheduleKind>& schedule_kinds();  // in the order of ScheduleId
const ScheduleKind& schedule_kind(ScheduleId id);
// Returns the schedule with the name that a user has written. Throws UserError for an unknown name.
const ScheduleKind& schedule_named(std::string_view name);

// The rules of kinds that order micro-batches in groups. If the recipe gives no group size, the
// number of rounds must divide the micro-batches. A given size must divide them, too, or leave a
// remainder of at least one micro-batch for each rank.
bool legal_rounds(int64_t micro_batches, int64_t pp);
bool legal_group(int64_t group, int64_t micro_batches, int64_t pp);
// Returns the legal counts closest to `from` and up to `most`, for hints: "8 or 12". Returns "" if
// there are none.
std::string nearest_legal(int64_t from, int64_t most, const std::function<bool(int64_t)>& legal);

// Throws UserError for a size that `kind` does not allow. The error names the rule and the nearest
// legal sizes.
void check_size(const ScheduleKind& kind, const ScheduleSize& size);

// Checks the size and returns what the ranks compute, without sends and receives.
Schedule make_schedule(const ScheduleKind& kind, const ScheduleSize& size);

// Returns the stages of `rank`, in the order of the model.
std::vector<int64_t> stages_of_rank(const ScheduleKind& kind, const ScheduleSize& size,
                                    int64_t rank);

// Returns the largest number of chunks whose activations `rank` holds at once, from forward to
// weight gradient.
int64_t chunks_in_flight(const ScheduleKind& kind, const ScheduleSize& size, int64_t rank);

// Whether some rank runs a forward with another micro-batch's backward in the order for overlapped
// experts. It uses a formula and is cheap even for sizes that are too large to list.
bool passes_pair(const ScheduleKind& kind, const ScheduleSize& size);

// Returns idle time / total time of a step, if F, I and W take equal time and communication takes
// none.
double bubble_fraction(const ScheduleKind& kind, const ScheduleSize& size);

}  // namespace mtrain::schedule
