// Long work that each rank does by itself when a run starts, such as tokenizing its data. A rank
// that is done waits for the others for as long as one of them makes progress.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/pulse.h"
#include "comm/world.h"

namespace mtrain::run {

// All ranks of a job make one, and call await_all().
class StartWork {
 public:
  using Clock = std::chrono::steady_clock;

  // Ranks give up after `timeout` without progress of any rank.
  StartWork(comm::World& world, Pulse& pulse, std::chrono::duration<double> timeout);

  // Shows that this rank makes progress. May be called often. Throws CommError if another rank has
  // failed.
  void progress();
  // Ends this rank's work, and returns when all ranks have ended theirs. Calls `waits` from time to
  // time with the number of ranks that still work. Throws CommError if another rank has failed, or
  // if no rank makes progress.
  void await_all(const std::function<void(int64_t working)>& waits);

 private:
  void require_no_failure();

  comm::World& world_;
  Pulse& pulse_;
  const std::chrono::duration<double> timeout_;
  std::shared_ptr<comm::Mailbox> mailbox_;  // null in a job of one rank
  Clock::time_point next_;                  // when the other ranks hear of progress again
};

// Returns "waiting for 2 of 8 ranks, which prepare their data".
std::string waits_text(int64_t working, int64_t ranks);

}  // namespace mtrain::run
