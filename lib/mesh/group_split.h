// A split of a job's ranks into groups of one purpose.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/group_traffic.h"

namespace mtrain::mesh {

// A split as one rank sees it. All ranks of a job have the same list of splits, in the same order;
// name and ranks differ.
struct GroupSplit {
  std::string name;  // of this rank's group
  GroupTraffic traffic = GroupTraffic::bulk;
  // This rank's group, in rising order; empty: this rank is in none of the split's groups.
  std::vector<int> ranks{};
  // The place in the list of an earlier split with groups that contain these. Both splits' groups
  // run on the same stream, so they may share what a library keeps for them. -1: there is none.
  int parent = -1;
};

// A split as one rank sees it, without the list of ranks.
struct CountedSplit {
  GroupTraffic traffic = GroupTraffic::bulk;
  int64_t ranks = 0;    // of this rank's group; 0: this rank is in none of the split's groups
  int64_t on_host = 0;  // those of them that are on this rank's host
  int parent = -1;      // as in GroupSplit
};

}  // namespace mtrain::mesh
