#include "comm/process/shared_memory_transport.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstring>

#include "base/error.h"
#include "comm/process/channel_memory.h"
#include "comm/process/host_process.h"
#include "comm/shm_communicator.h"
#include "store/store_protocol.h"

namespace mtrain::comm {

namespace {

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<store::Store> store, int rank, int size,
                        std::chrono::nanoseconds timeout)
      : store_(std::move(store)), rank_(rank), timeout_(timeout) {
    const std::string host = host_identity();
    constexpr const char* kProcesses = "processes";
    store_->put(kProcesses, rank, size, ProcessIdentity::own().text() + "\n" + host);
    const std::vector<std::string> texts = store_->all(kProcesses, size);
    for (int r = 0; r < size; ++r) {
      const std::string& text = texts[size_t(r)];
      const size_t line = text.find('\n');
      if (text.substr(line + 1) != host)
        throw UserError(fmt::format("rank {} runs on `{}`, rank {} on `{}`", r,
                                    text.substr(line + 1, store::kMaxReasonBytes), rank, host),
                        "ranks on several hosts need gloo: comm.backend=gloo");
      const auto process = ProcessIdentity::parse(text.substr(0, line));
      if (!process) throw CommError(fmt::format("rank {} does not say which process it is", r));
      processes_.push_back(*process);
    }
  }

  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks,
                                        int rank, Traffic) override {
    const size_t bytes = SharedMemoryChannel::bytes(int(ranks.size()));
    const std::string key = "channel/" + name;
    std::shared_ptr<ChannelMemory> memory;
    if (rank == 0) {
      memory = ChannelMemory::make(bytes);
      store_->set(key, memory->place());
    } else {
      try {
        memory = ChannelMemory::open(store_->get(key), processes_[size_t(ranks[0])], bytes);
      } catch (const CommError& e) {
        throw CommError(
            fmt::format("group {}: the memory of rank {}: {}", name, ranks[0], e.message()),
            e.hint());
      }
    }
    std::vector<ProcessIdentity> members;
    for (const int r : ranks) members.push_back(processes_[size_t(r)]);
    SharedMemoryChannel channel(memory->data(), rank, int(ranks.size()), int(processes_.size()),
                                timeout_,
                                [members](int peer) { return members[size_t(peer)].ended(); });
    return shm_communicator(std::move(channel), memory);
  }

 private:
  const std::shared_ptr<store::Store> store_;
  const int rank_;
  const std::chrono::nanoseconds timeout_;
  std::vector<ProcessIdentity> processes_;
};

}  // namespace

std::shared_ptr<Transport> shared_memory_transport(std::shared_ptr<store::Store> store, int rank,
                                                   int size, std::chrono::nanoseconds timeout) {
  return std::make_shared<SharedMemoryTransport>(std::move(store), rank, size, timeout);
}

}  // namespace mtrain::comm
