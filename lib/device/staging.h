// Staging is host memory that a device reads by itself, for copies that the host need not wait for.
// This header knows nothing of CUDA.
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
  static constexpr int64_t kMaxEach = 4ll << 20, kMaxInAll = 64ll << 20;  // bytes

  struct Slot {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
    std::shared_ptr<const EventBackend> passed{};  // the end of the copy from it; null: none yet
  };

  explicit Staging(std::function<std::shared_ptr<void>(int64_t bytes)> allocate)
      : allocate_(std::move(allocate)) {}

  // Returns the smallest slot that has room and that no copy is reading from. Returns null where
  // the copies under way have taken all slots, or the data is too large for one. The caller sets
  // `passed` before the next call.
  Slot* take(int64_t bytes) {
    if (bytes > kMaxEach) return nullptr;
    const auto size = int64_t(std::bit_ceil(uint64_t(std::max(bytes, kLeast))));
    for (auto at = slots_.lower_bound(size); at != slots_.end(); ++at) {
      std::deque<Slot>& queue = at->second;
      if (queue.front().passed && !queue.front().passed->ready()) continue;
      queue.push_back(std::move(queue.front()));
      queue.pop_front();
      return &queue.back();
    }
    if (in_all_ + size > kMaxInAll) return nullptr;
    in_all_ += size;
    return &slots_[size].emplace_back(Slot{allocate_(size), size});
  }

 private:
  static constexpr int64_t kLeast = 16 << 10;
  const std::function<std::shared_ptr<void>(int64_t)> allocate_;
  // By size, the slot taken longest ago first: a stream's copies end in the order in which they
  // were enqueued.
  std::map<int64_t, std::deque<Slot>> slots_;
  int64_t in_all_ = 0;
};

}  // namespace mtrain::device
