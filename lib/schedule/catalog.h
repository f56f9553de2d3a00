// The schedules by name: which sizes each can have, its list of actions, and its published costs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "schedule/generators.h"

namespace mtrain {

struct ScheduleKind {
  std::string_view name;
  int64_t fewest_stages, most_stages;  // per rank
  bool in_groups;                      // orders micro-batches in groups
  bool v;                              // stage i and its mirror share a rank; else stages go round
  ActionList (*list)(const ScheduleSize&, int64_t rank);
  int64_t (*chunks)(const ScheduleSize&, int64_t rank);  // in flight where micro-batches abound
  double (*idle)(const ScheduleSize&);                   // idle time / busy time
};
const std::vector<ScheduleKind>& schedule_kinds();
const ScheduleKind& schedule_kind(std::string_view name);  // UserError for a name that is none

// UserError, with the rule and the nearest sizes that keep it, for a size that `kind` cannot have.
void check_size(const ScheduleKind& kind, const ScheduleSize& size);

// Checks the size; what ranks compute, without sends and receives.
Schedule make_schedule(std::string_view name, const ScheduleSize& size);

// The stages of `rank`, in the order of the model.
std::vector<int64_t> stages_of_rank(const ScheduleKind& kind, const ScheduleSize& size,
                                    int64_t rank);

// Most chunks whose activations `rank` holds at once, from forward to weight gradient.
int64_t chunks_in_flight(const ScheduleKind& kind, const ScheduleSize& size, int64_t rank);

// Idle time / whole time of a step for F, I and W of equal length and communication of none.
double bubble_fraction(const ScheduleKind& kind, const ScheduleSize& size);

}  // namespace mtrain
