// Memory for the time of a few launches, kept per stream once it was needed. Nothing of CUDA is in
// here.
//
// Not the runtime's stream-ordered allocator: in a capture that makes two nodes of a graph for
// every use, and takes the graph's memory from another pool than that of launches one by one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

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
      const size_t size =
          small ? round_up(bytes, kGranule) : std::max(kLeastLarge, round_up(bytes, kLargeGranule));
      blocks.push_back({take_(size), size, device, small, true});
      best = &blocks.back();
    }
    best->free = false;
    return best->memory;
  }

  void give(void* memory, const void* stream) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(stream);
    if (found == blocks_.end()) return;
    for (Block& b : found->second)
      if (b.memory == memory) b.free = true;
  }

 private:
  struct Block {
    void* memory;
    size_t bytes;
    int device;
    bool small, free;
  };
  // Small requests leave the large blocks to large ones; those of cuBLASLt, which differ per shape,
  // share blocks of what it may ask at most.
  static constexpr size_t kSmall = 1 << 20, kGranule = 512;
  static constexpr size_t kLeastLarge = 32 << 20, kLargeGranule = 2 << 20;
  static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

  const Take take_;
  std::mutex mutex_;
  std::map<const void*, std::vector<Block>> blocks_;  // by stream: few each
};

}  // namespace mtrain::kernels::cuda
