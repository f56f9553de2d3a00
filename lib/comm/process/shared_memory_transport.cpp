#include "comm/process/shared_memory_transport.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "comm/process/host_process.h"
#include "comm/shm_communicator.h"

namespace mtrain::comm {

namespace {

// A mapped memory file. The file lives as long as any process has it open or mapped.
struct Mapping {
  void* memory = MAP_FAILED;
  size_t bytes = 0;
  int fd = -1;
  ~Mapping() {
    if (memory != MAP_FAILED) munmap(memory, bytes);
    if (fd >= 0) close(fd);
  }
};

[[noreturn]] void fail(const std::string& what) {
  throw RunError(fmt::format("shared memory: {}: {}", what, std::strerror(errno)));
}

std::shared_ptr<Mapping> map_whole(int fd, size_t bytes) {
  auto m = std::make_shared<Mapping>();
  m->fd = fd;
  m->bytes = bytes;
  m->memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m->memory == MAP_FAILED) fail(fmt::format("mapping {} bytes", bytes));
  return m;
}

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<Store> store, int rank, int size,
                        std::chrono::nanoseconds timeout)
      : store_(std::move(store)), rank_(rank), timeout_(timeout) {
    const std::string host = host_identity();
    store_->set(fmt::format("process/{}", rank), ProcessIdentity::own().text() + "\n" + host);
    for (int r = 0; r < size; ++r) {
      const std::string text = store_->get(fmt::format("process/{}", r));
      const size_t line = text.find('\n');
      if (text.substr(line + 1) != host)
        throw UserError(fmt::format("rank {} runs on `{}`, rank {} on `{}`", r,
                                    text.substr(line + 1), rank, host),
                        "ranks on several hosts talk over gloo: comm.backend=gloo");
      processes_.push_back(ProcessIdentity::parse(text.substr(0, line)));
    }
  }

  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks,
                                        int rank) override {
    const size_t bytes = SharedMemoryChannel::bytes(int(ranks.size()));
    const std::string key = "channel/" + name;
    std::shared_ptr<Mapping> memory;
    if (rank == 0) {
      const int fd = memfd_create("mtrain channel", MFD_CLOEXEC);
      if (fd < 0 || ftruncate(fd, off_t(bytes)) < 0) fail("memfd");
      memory = map_whole(fd, bytes);
      store_->set(key, fmt::format("/proc/{}/fd/{}", getpid(), fd));
    } else {
      const std::string path = store_->get(key);
      const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0)
        throw CommError(fmt::format("group {}: cannot open the memory of rank {} ({}): {}", name,
                                    ranks[0], path, std::strerror(errno)),
                        "that rank has ended, or its memory belongs to another user");
      memory = map_whole(fd, bytes);
    }
    std::vector<ProcessIdentity> members;
    for (const int r : ranks) members.push_back(processes_[size_t(r)]);
    SharedMemoryChannel channel(memory->memory, rank, int(ranks.size()), timeout_,
                                [members](int peer) { return members[size_t(peer)].ended(); });
    return shm_communicator(std::move(channel), memory);
  }

 private:
  const std::shared_ptr<Store> store_;
  const int rank_;
  const std::chrono::nanoseconds timeout_;
  std::vector<ProcessIdentity> processes_;
};

}  // namespace

std::shared_ptr<Transport> shared_memory_transport(std::shared_ptr<Store> store, int rank, int size,
                                                   std::chrono::nanoseconds timeout) {
  return std::make_shared<SharedMemoryTransport>(std::move(store), rank, size, timeout);
}

}  // namespace mtrain::comm
