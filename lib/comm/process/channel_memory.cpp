#include "comm/process/channel_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/memory_file.h"
#include "store/store_protocol.h"

namespace mtrain::comm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const std::string& what) {
  throw RunError(fmt::format("shared memory: {}: {}", what, std::strerror(errno)));
}

[[noreturn]] void refuse(const std::string& what) {
  throw CommError(what, "that rank has ended, or its memory belongs to another user");
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

std::string own_path(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

// Whether the descriptor is from memfd_create(): only the kernel gives names that begin like this.
bool is_anonymous_memory(int fd) {
  constexpr std::string_view kMemfd = "/memfd:";
  char target[kMemfd.size()];
  return readlink(own_path(fd).c_str(), target, sizeof target) == ssize_t(sizeof target) &&
         std::string_view(target, sizeof target) == kMemfd;
}

// Parses "<pid> <file descriptor>".
std::pair<int64_t, int64_t> parse_place(const std::string& place) {
  const size_t space = place.find(' ');
  if (space != std::string::npos) {
    const auto pid = store::parse_number(std::string_view(place).substr(0, space)),
               fd = store::parse_number(std::string_view(place).substr(space + 1));
    if (pid && fd && *pid > 0 && *fd >= 0) return {*pid, *fd};
  }
  refuse("it is not described by two numbers");
}

}  // namespace

ChannelMemory::ChannelMemory(int fd, size_t bytes)
    : fd_(fd),
      bytes_(bytes),
      data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {
  if (data_ != MAP_FAILED) return;
  const int why = errno;
  close(fd_);
  errno = why;
  fail(fmt::format("mapping {} bytes", bytes));
}

ChannelMemory::~ChannelMemory() {
  munmap(data_, bytes_);
  close(fd_);
}

std::string ChannelMemory::place() const { return fmt::format("{} {}", getpid(), fd_); }

std::shared_ptr<ChannelMemory> ChannelMemory::make(size_t bytes) {
  Descriptor d{memory_file("mtrain channel")};
  if (d.fd < 0 || ftruncate(d.fd, off_t(bytes)) < 0 || fcntl(d.fd, F_ADD_SEALS, kSeals) < 0)
    fail("memfd");
  return std::shared_ptr<ChannelMemory>(new ChannelMemory(std::exchange(d.fd, -1), bytes));
}

std::shared_ptr<ChannelMemory> ChannelMemory::open(const std::string& place,
                                                   const ProcessIdentity& owner, size_t bytes) {
  const auto [pid, number] = parse_place(place);
  if (pid != owner.pid || owner.ended())
    refuse(fmt::format("process {} is not that rank's process {}", pid, owner.pid));
  // O_PATH does not open the file yet. It is checked first, and then opened by this descriptor.
  const Descriptor found{
      ::open(fmt::format("/proc/{}/fd/{}", pid, number).c_str(), O_PATH | O_CLOEXEC)};
  if (found.fd < 0)
    refuse(fmt::format("cannot open descriptor {} of process {}: {}", number, pid,
                       std::strerror(errno)));
  struct stat file {};
  if (!is_anonymous_memory(found.fd) || fstat(found.fd, &file) < 0 || !S_ISREG(file.st_mode))
    refuse(fmt::format("descriptor {} of process {} is not anonymous memory", number, pid));
  if (file.st_uid != geteuid()) refuse(fmt::format("it belongs to user {}", file.st_uid));
  if (uint64_t(file.st_size) != bytes)
    refuse(fmt::format("it has {} bytes instead of {}", file.st_size, bytes));
  Descriptor opened{::open(own_path(found.fd).c_str(), O_RDWR | O_CLOEXEC)};
  if (opened.fd < 0) refuse(fmt::format("cannot open it: {}", std::strerror(errno)));
  if (const int seals = fcntl(opened.fd, F_GET_SEALS); seals < 0 || (seals & kSeals) != kSeals)
    refuse("it is not sealed against resizing");
  return std::shared_ptr<ChannelMemory>(new ChannelMemory(std::exchange(opened.fd, -1), bytes));
}

}  // namespace mtrain::comm
