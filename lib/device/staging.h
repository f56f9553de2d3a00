// Host memory that a device reads by itself, for copies that the host need not wait for. Knows
// nothing of CUDA.
#pragma once
#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <vector>

#include "device/backend.h"

namespace mtrain {

class Staging {
 public:
  static constexpr int64_t kMostEach = 4ll << 20, kMostInAll = 64ll << 20;  // bytes

  struct Slot {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
    std::shared_ptr<const EventBackend> passed{};  // the copy from it; null: none yet
  };

  explicit Staging(std::function<std::shared_ptr<void>(int64_t bytes)> allocate)
      : allocate_(std::move(allocate)) {}

  // The smallest that has room and that no copy is reading from. Null where the copies under way
  // have taken all, or the data is more than is staged. The caller sets `passed`.
  Slot* take(int64_t bytes) {
    if (bytes > kMostEach) return nullptr;
    Slot* best = nullptr;
    for (Slot& s : slots_)
      if (s.bytes >= bytes && (!best || s.bytes < best->bytes) && (!s.passed || s.passed->ready()))
        best = &s;
    if (best) return best;
    const auto size = int64_t(std::bit_ceil(uint64_t(std::max(bytes, kLeast))));
    if (in_all_ + size > kMostInAll) return nullptr;
    slots_.push_back({allocate_(size), size});
    in_all_ += size;
    return &slots_.back();
  }

 private:
  static constexpr int64_t kLeast = 16 << 10;
  const std::function<std::shared_ptr<void>(int64_t)> allocate_;
  std::vector<Slot> slots_;
  int64_t in_all_ = 0;
};

}  // namespace mtrain
