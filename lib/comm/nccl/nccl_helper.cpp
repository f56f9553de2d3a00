#include "comm/nccl/nccl_helper.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace mtrain::comm {

std::optional<NcclAnswer> answer_within(std::chrono::steady_clock::time_point deadline,
                                        std::function<NcclAnswer()> call) {
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
  shared->done.wait_until(lock, deadline, [&] { return shared->answer.has_value(); });
  return shared->answer;
}

}  // namespace mtrain::comm
