// How a rank of a pipeline reaches the others.
#pragma once
#include <map>

#include "comm/group.h"
#include "device/stream.h"

namespace mtrain {

// Messages from one rank to one other, in the order in which they are sent. It has a group and a
// stream of its own, so that none waits for another pair's, or for those the other way.
struct Channel {
  Group group;  // of the two
  Stream* on;
};

struct PipelineLinks {
  int64_t rank = 0, size = 1;
  Stream* compute;
  // The rest is absent for one rank.
  std::map<int64_t, Channel> to, from;  // by the other's rank in the pipeline
  Group all;                            // pp; on `on`
  Group table;  // the ranks that share a tied table, where they are two; on `on`
  Stream* on = nullptr;
};

}  // namespace mtrain
