#include "run/start_work.h"

#include <algorithm>
#include <thread>

#include <fmt/core.h>

#include "base/error.h"

namespace mtrain::run {

namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

// One number of the job counts both, so that a waiting rank asks for one: the parts of work, and
// the ranks that are done.
constexpr const char* kNumber = "start work";
constexpr int64_t kPart = 1, kRank = int64_t(1) << 40;

}  // namespace

StartWork::StartWork(comm::World& world, Pulse& pulse, std::chrono::duration<double> timeout)
    : world_(world), pulse_(pulse), timeout_(timeout) {
  if (world.size() == 1) return;
  mailbox_ = world.mailbox();
  MT_CHECK(mailbox_, "the ranks of a run have no mailbox");
}

void StartWork::progress() {
  pulse_.wrote();
  if (!mailbox_ || Clock::now() < next_) return;
  require_no_failure();
  mailbox_->add(kNumber, kPart);
  next_ = Clock::now() +
          std::chrono::duration_cast<Clock::duration>(std::min<Seconds>(1s, timeout_ / 4));
}

void StartWork::await_all(const std::function<void(int64_t working)>& waits) {
  if (!mailbox_) return;
  // With more ranks each asks less often: the store serves all of them.
  const Seconds longest =
      std::min<Seconds>({std::max<Seconds>(100ms, 1ms * world_.size()), 5s, timeout_ / 4});
  int64_t last = mailbox_->add(kNumber, kRank);
  auto progressed = Clock::now();
  for (Seconds pause = 1ms; last / kRank < world_.size(); pause = std::min(2 * pause, longest)) {
    std::this_thread::sleep_for(pause);
    require_no_failure();
    const int64_t now = mailbox_->add(kNumber, 0);
    if (now != last) {
      last = now, progressed = Clock::now();
      pulse_.wrote();  // the launcher would take this rank as one that hangs
    }
    const int64_t working = world_.size() - last / kRank;
    if (Clock::now() - progressed > timeout_)
      throw CommError(fmt::format("{} of {} ranks, which prepare their data, made no progress for "
                                  "{:.3g} s",
                                  working, world_.size(), timeout_.count()),
                      "a rank is stuck or slow; comm.timeout_s sets how long to wait");
    waits(working);
  }
}

void StartWork::require_no_failure() {
  if (const std::string failure = world_.failure(); !failure.empty()) throw CommError(failure);
}

std::string waits_text(int64_t working, int64_t ranks) {
  return fmt::format("waiting for {} of {} ranks, which prepare their data", working, ranks);
}

}  // namespace mtrain::run
