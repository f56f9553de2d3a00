// Collectives over NCCL. Calls enqueue on the stream and return; a watchdog thread checks that they
// end.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/failure_reporter.h"
#include "comm/nccl/nccl_api.h"

namespace mtrain::comm {

struct NcclGroup {
  std::string name;
  std::vector<int> ranks;  // of the world
  int rank = 0;            // in the group
  std::chrono::nanoseconds timeout;
};

// Takes ownership of `comm`, which is connected. If a call has begun on the GPU and does not end
// within the timeout, all ranks abort their work on the GPU. LaunchContext::late then gets an error
// that names the ranks that did not arrive.
std::unique_ptr<Communicator> nccl_communicator(std::shared_ptr<NcclApi> api, ncclComm* comm,
                                                NcclGroup group,
                                                std::unique_ptr<FailureReporter> reporter);

}  // namespace mtrain::comm
