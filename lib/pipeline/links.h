// The channels and groups over which a rank of a pipeline communicates with the others.
#pragma once
#include <map>

#include "comm/group.h"
#include "device/stream.h"

namespace mtrain::pipeline {

// A channel carries messages from one rank to another, in the order in which they are sent. It has
// a group and a stream of its own: no message waits for those of another pair of ranks, or for
// those of the other direction.
struct Channel {
  Group group;  // the two ranks
  Stream* stream;
};

struct PipelineLinks {
  int64_t rank = 0, size = 1;
  Stream* compute;
  // The following are absent for a pipeline of one rank.
  std::map<int64_t, Channel> to, from;  // by the other's rank in the pipeline
  Group all;                            // all ranks of the pipeline; uses `stream`
  Group table;  // the two ranks that share a tied token table, if they differ; uses `stream`
  Stream* stream = nullptr;
};

}  // namespace mtrain::pipeline
