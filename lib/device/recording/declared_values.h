// What the host reads from a recording device, which computes nothing.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "device/stream.h"

namespace mtrain::device {

// A buffer into which the host has copied numbers still has them: kernels and communication change
// nothing. Sums over ranks are therefore this rank's own numbers. All other floats are 1 (a loss, a
// norm, a maximum), and all other integers are 0.
class DeclaredValues {
 public:
  void upload(const Access& device, const void* host);
  void download(void* host, const Access& device) const;

 private:
  // The host reads back small buffers alone.
  static constexpr int64_t kMostBytes = 4096;
  // By the serial number of the allocation, and the address within it.
  std::map<std::pair<uint64_t, const void*>, std::vector<char>> uploaded_;
};

}  // namespace mtrain::device
