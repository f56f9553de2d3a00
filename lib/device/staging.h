// Staging memory: host memory that a device can read by itself. The host need not wait for copies
// from it. This header includes nothing of CUDA.
#pragma once
#include <algorithm>
#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "device/backend.h"

namespace mtrain::device {

class Staging {
 public:
  // Bytes of one slot, and of all slots together.
  static constexpr int64_t kMaxEach = 4ll << 20, kMaxInAll = 64ll << 20;

  struct Slot {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
    std::shared_ptr<const EventBackend> passed{};  // the end of the last copy from it; null: none
  };

  explicit Staging(std::function<std::shared_ptr<void>(int64_t bytes)> allocate)
      : allocate_(std::move(allocate)) {}

  // Returns the smallest slot that is large enough and that no copy reads from. Returns null if
  // running copies have taken all slots, or if the data is too large for one. The caller sets
  // `passed` before the next call.
  Slot* take(int64_t bytes) {
    if (bytes > kMaxEach) return nullptr;
    const auto size = int64_t(std::bit_ceil(uint64_t(std::max(bytes, kMinSlot))));
    for (auto at = slots_.lower_bound(size); at != slots_.end(); ++at) {
      std::deque<Slot>& queue = at->second;
      if (queue.front().passed && !queue.front().passed->ready()) continue;
      queue.push_back(std::move(queue.front()));
      queue.pop_front();
      return &queue.back();
    }
    if (total_ + size > kMaxInAll) return nullptr;
    total_ += size;
    return &slots_[size].emplace_back(Slot{allocate_(size), size});
  }

 private:
  static constexpr int64_t kMinSlot = 16 << 10;  // bytes
  const std::function<std::shared_ptr<void>(int64_t)> allocate_;
  // The slots of each size, the one taken longest ago first: a stream's copies end in the order in
  // which they were enqueued.
  std::map<int64_t, std::deque<Slot>> slots_;
  int64_t total_ = 0;  // bytes
};

}  // namespace mtrain::device
