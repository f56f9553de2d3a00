// The memory of a channel between processes of one host: an anonymous file, which one process makes
// and the others open through /proc. Nothing remains when the processes die.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "comm/process/host_process.h"

namespace mtrain::comm {

class ChannelMemory {
 public:
  // Makes zeroed memory that cannot be resized. Throws RunError.
  static std::shared_ptr<ChannelMemory> make(size_t bytes);
  // Opens the memory that the process `owner` has made and described by `place`. Throws CommError
  // unless it is anonymous memory of that process and of this user, has exactly this size, and is
  // sealed: nobody can shorten it while others use it. A place cannot name a file, since only two
  // numbers are read from it.
  static std::shared_ptr<ChannelMemory> open(const std::string& place, const ProcessIdentity& owner,
                                             size_t bytes);
  ~ChannelMemory();
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;

  void* data() const { return data_; }
  std::string place() const;  // "<pid> <file descriptor>" of this process

 private:
  ChannelMemory(int fd, size_t bytes);

  const int fd_;
  const size_t bytes_;
  void* data_;
};

}  // namespace mtrain::comm
