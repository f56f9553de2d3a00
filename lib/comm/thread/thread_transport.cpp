#include "comm/thread/thread_transport.h"

#include <sys/mman.h>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/shm_communicator.h"

namespace mtrain::comm {

namespace {

// Returns zeroed memory; only the pages that are used take space.
std::shared_ptr<void> zeroed(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw RunError(fmt::format("no memory for {} bytes of a group's channel", bytes));
  return {memory, [bytes](void* m) { munmap(m, bytes); }};
}

class ThreadTransport : public Transport {
 public:
  ThreadTransport(int ranks, std::chrono::nanoseconds timeout)
      : world_ranks_(ranks), timeout_(timeout) {}

  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks,
                                        int rank, Traffic) override {
    std::shared_ptr<void> memory;
    {
      std::lock_guard lock(mutex_);
      auto& known = memories_[name];
      memory = known.lock();
      if (!memory) known = memory = zeroed(SharedMemoryChannel::bytes(int(ranks.size())));
    }
    return shm_communicator(
        SharedMemoryChannel(memory.get(), rank, int(ranks.size()), world_ranks_, timeout_, {}),
        memory);
  }
  std::shared_ptr<Mailbox> mailbox() override { return mailbox_; }
  std::optional<JobAccess> access() override { return JobAccess{token_, "127.0.0.1", "127.0.0.1"}; }
  void abort(std::string_view reason) noexcept override {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = reason;
  }
  std::string failure() override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  const std::shared_ptr<Mailbox> mailbox_ = shared_mailbox();
  const Token token_ = Token::random();
  const int world_ranks_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::string failure_;
  std::map<std::string, std::weak_ptr<void>> memories_;
};

}  // namespace

void run_thread_ranks(int ranks, const std::function<void(World&)>& body,
                      const ThreadRanksOptions& options) {
  // All ranks share this one object.
  const auto transport = std::make_shared<ThreadTransport>(ranks, options.timeout);
  std::vector<World> worlds;
  for (int r = 0; r < ranks; ++r) worlds.emplace_back(r, ranks, transport, options.link);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (World& world : worlds)
    threads.emplace_back([&] {
      try {
        body(world);
      } catch (...) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.abort("it has failed");
      }
    });
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace mtrain::comm
