// What the tests of streams share.
#pragma once
#include <atomic>
#include <memory>
#include <thread>

#include "device/device.h"

namespace mtrain {

// Holds a stream up until opened. Declared after the device, it opens before the device waits for
// its streams, so that a failed check does not hang the test.
class Gate {
 public:
  Gate() = default;
  ~Gate() { open(); }
  void open() { *open_ = true; }
  void block(Stream& stream) {
    stream.launch({.name = "gate"}, [open = open_](const LaunchContext&) {
      while (!*open) std::this_thread::yield();
    });
  }

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

inline void no_work(const LaunchContext&) {}

inline Access all_of(const Buffer& b) { return {b->data, b->bytes, b}; }
inline Access part_of(const Buffer& b, int64_t begin, int64_t end) {
  return {static_cast<char*>(b->data) + begin, end - begin, b};
}

}  // namespace mtrain
