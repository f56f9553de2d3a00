// Memory for the time of a few launches, kept per stream once it was needed. Nothing of CUDA is in
// here.
//
// Not the runtime's stream-ordered allocator: in a capture that makes two nodes of a graph for
// every use, and takes the graph's memory from another pool than that of launches one by one.
#pragma once
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/log.h"

namespace mtrain::kernels::cuda {

class ScratchCache {
 public:
  using Take = void* (*)(size_t bytes);  // from the device; throws where there is none
  explicit ScratchCache(Take take) : take_(take) {}

  // A block that was given back may be taken again at once, since its next user comes after the
  // last one in the stream. Its address stays good for graphs: no block is ever freed.
  void* take(size_t bytes, int device, const void* stream) {
    const std::lock_guard lock(mutex_);
    const bool small = bytes < kSmall;
    std::vector<Block>& blocks = blocks_[stream];
    Block* best = nullptr;
    for (Block& b : blocks)
      if (b.free && b.device == device && b.small == small && b.bytes >= bytes &&
          (!best || b.bytes < best->bytes))
        best = &b;
    if (!best) {
      // To a quarter of a power of two: sizes that grow a little share a block.
      const size_t size = round_up(bytes, small ? kGranule : std::bit_floor(bytes) / 4);
      blocks.push_back({take_(size), size, device, small, true});
      best = &blocks.back();
    }
    best->free = false;
    return best->memory;
  }

  void give(void* memory, const void* stream) noexcept {
    const std::lock_guard lock(mutex_);
    for (Block& b : blocks_[stream])
      if (b.memory == memory) {
        b.free = true;
        return;
      }
    log::warn("bug: scratch memory comes back to a stream that has not taken it");
  }

 private:
  struct Block {
    void* memory;
    size_t bytes;
    int device;
    bool small, free;
  };
  // Small requests leave the large blocks to large ones.
  static constexpr size_t kSmall = 1 << 20, kGranule = 512;
  static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

  const Take take_;
  std::mutex mutex_;
  std::map<const void*, std::vector<Block>> blocks_;  // by stream: few each
};

}  // namespace mtrain::kernels::cuda
