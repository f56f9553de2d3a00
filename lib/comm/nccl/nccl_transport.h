// Ranks with a GPU each, over NCCL.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "comm/nccl/nccl_api.h"
#include "comm/world.h"
#include "store/store.h"

namespace mtrain::comm {

struct NcclOptions {
  store::StoreAddress store;
  std::chrono::nanoseconds timeout = std::chrono::seconds(600);
  int rank = 0;  // of the job
};

// Every rank of the world calls it.
std::shared_ptr<Transport> nccl_transport(std::shared_ptr<NcclApi> api, const NcclOptions& options);

}  // namespace mtrain::comm
