#include "comm/nccl/nccl_helper.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace mtrain::comm {

namespace {
constexpr std::chrono::milliseconds kAskAgain{250};
}  // namespace

std::optional<NcclAnswer> answer_within(std::chrono::steady_clock::time_point deadline,
                                        std::function<NcclAnswer()> call,
                                        const std::function<bool()>& give_up) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<NcclAnswer> answer;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, call = std::move(call)]() mutable {
    NcclAnswer answer;
    try {
      answer = call();
    } catch (const std::exception& e) {
      answer = {NcclAnswer::State::failed, e.what()};
    }
    call = nullptr;  // frees what it owns before the answer can be seen
    const std::lock_guard lock(shared->mutex);
    shared->answer = std::move(answer);
    shared->done.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  const auto answered = [&] { return shared->answer.has_value(); };
  while (give_up && !answered()) {
    const auto next = std::min(deadline, std::chrono::steady_clock::now() + kAskAgain);
    if (shared->done.wait_until(lock, next, answered)) break;
    lock.unlock();
    const bool ends = next == deadline || give_up();
    lock.lock();
    if (ends) return shared->answer;
  }
  shared->done.wait_until(lock, deadline, answered);
  return shared->answer;
}

}  // namespace mtrain::comm
