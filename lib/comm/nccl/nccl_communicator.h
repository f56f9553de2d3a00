// Collectives over NCCL. Calls enqueue on the stream and return; a watchdog thread checks that they
// end.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/failure_reporter.h"
#include "comm/nccl/nccl_api.h"

namespace mtrain::comm {

// Communicators that share resources. NCCL aborts all of them together. Any thread may call it.
class NcclFamily {
 public:
  // Keeps the first reason. A member calls it before it is aborted.
  void aborted(const std::string& reason);
  std::optional<std::string> failure() const;  // the reason; nothing while no member was aborted

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> reason_;
};

struct NcclGroup {
  std::string name;
  std::vector<int> ranks;  // of the world
  int rank = 0;            // in the group
  std::chrono::nanoseconds timeout{};
  // The communicators that share resources with this one; null: it shares none.
  std::shared_ptr<NcclFamily> family{};
  // The communicator whose resources it uses, which must outlive it; null: it uses its own.
  std::shared_ptr<Communicator> owner{};
};

// Takes ownership of `comm`, which is connected. If a call has begun on the GPU and does not end
// within the timeout, all ranks abort their work on the GPU. LaunchContext::late then gets an error
// that names the ranks that did not arrive.
std::unique_ptr<Communicator> nccl_communicator(std::shared_ptr<NcclApi> api, ncclComm* comm,
                                                NcclGroup group,
                                                std::unique_ptr<FailureReporter> reporter);

}  // namespace mtrain::comm
