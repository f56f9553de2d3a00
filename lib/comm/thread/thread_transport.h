// Ranks as threads of one process, for tests and the sanitizer builds.
#pragma once
#include <chrono>
#include <functional>

#include "comm/world.h"

namespace mtrain::comm {

struct ThreadRanksOptions {
  std::chrono::nanoseconds timeout = std::chrono::seconds(20);
  Link link{};
};

// Runs `body` on `ranks` threads, one for each rank. A rank that throws aborts all groups; when all
// ranks have ended, the first failure is rethrown.
void run_thread_ranks(int ranks, const std::function<void(World&)>& body,
                      const ThreadRanksOptions& options = {});

}  // namespace mtrain::comm
