// Makes communicators of NCCL within a deadline.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "comm/failure_reporter.h"
#include "comm/nccl/nccl_api.h"
#include "mesh/group_split.h"

namespace mtrain::comm {

struct NcclConnection {
  NcclAnswer answer;         // under_way: the deadline has passed, or the caller gave up
  ncclComm* comm = nullptr;  // only if it is done
  bool inside = false;       // a thread is still in NCCL's call
};

// Calls `make` on a thread of its own and waits until the communicator is connected. `parent` is
// the communicator that it is split from; null: there is none. After a failure the communicator is
// aborted, if NCCL has returned one. NCCL may block forever, and before it returns there is no
// communicator to abort.
NcclConnection connect_within(std::chrono::steady_clock::time_point deadline,
                              const std::shared_ptr<NcclApi>& api, ncclComm* parent,
                              std::function<NcclAnswer(NcclApi&, ncclComm*&)> make,
                              const std::function<bool()>& give_up = {});

struct NcclSplitting {
  std::chrono::nanoseconds timeout;
  FailureReporter* reporter;         // of all ranks of the job
  std::function<bool()> job_failed;  // whether a rank has given up before it came here
};

// Returns the configuration of a split's communicator. It shares its resources if later splits name
// it as their parent.
NcclConfig config_of_split(const std::vector<mesh::GroupSplit>& splits, size_t which);

// Makes the communicators of all splits but the first, whose communicator is `world`; a rank
// without a group of a split gets null. All ranks make the same calls in the order of the list, and
// so none waits for a rank that is in another call.
//
// A split with a parent is made from the parent's communicator and shares its resources. All others
// are made from `world`, which shares none. NCCL runs the calls of communicators that share
// resources one after the other, in the order in which hosts make them. It therefore would not run
// a gather of parameters beside an exchange of tensor parallelism. A receive that is enqueued early
// would even block the call that its sender waits for. Therefore only groups share whose calls run
// on one stream, and are in its order in any case. A split from a communicator that shares has no
// more blocks than that one; NCCL cuts larger requests.
//
// If a rank fails or does not come, every rank throws CommError with that rank, and aborts what it
// has made. It does not abort the communicator that a thread is still splitting.
std::vector<ncclComm*> split_communicators(const std::shared_ptr<NcclApi>& api, ncclComm* world,
                                           const std::vector<mesh::GroupSplit>& splits, int rank,
                                           const NcclSplitting& options);

}  // namespace mtrain::comm
