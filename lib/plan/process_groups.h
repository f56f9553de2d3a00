// The groups of ranks that a training communicates in, as a list. Training connects them at once,
// before its first step; the memory of a library is estimated by the same list.
#pragma once
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "mesh/group_split.h"
#include "schedule/action.h"
#include "spec/model_spec.h"

namespace mtrain::plan {

struct RunPlan;

// Returns the splits of the plan's ranks as `rank` sees them; the first one has all ranks. Groups
// of one rank are left out. Under Muon the list has the groups that broadcast updated matrices,
// even if optimizer.groups leave all of a group's matrices to AdamW.
std::vector<mesh::GroupSplit> process_groups(const RunPlan& plan, int64_t rank);

// Returns the same splits with numbers of ranks instead of the ranks, which a plan may have
// thousands of. A host has `ranks_per_host` consecutive ranks.
std::vector<mesh::CountedSplit> count_process_groups(const RunPlan& plan, int64_t rank,
                                                     int64_t ranks_per_host);

// Returns the pairs of pipeline ranks (from, to) between which messages are sent, in a fixed order:
// creating a group is a collective call of its ranks.
std::set<std::pair<int64_t, int64_t>> pipeline_channels(const schedule::Schedule& schedule);

// Returns what the groups that gather parameters carry.
GroupTraffic gather_traffic(const RunPlan& plan);

// Whether two ranks of a pipeline have the token table: that of the first stage, and that of the
// output layer or of multi-token prediction.
bool shares_table(const RunPlan& plan);
// The pipeline rank of the latter.
int64_t second_table_rank(const RunPlan& plan);

}  // namespace mtrain::plan
