// What one launch's kernels take of the house's memory: buffers of their stream, of the category
// workspace. So they are counted, draw on a graph's memory while it is captured, and make the
// allocator give cached memory back where the device has no more.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/scratch_memory.h"

namespace mtrain::ops {

// Within the launch, by the rank's host thread: there CUDA's launches do their work.
class LaunchScratch final : public kernels::ScratchMemory {
 public:
  explicit LaunchScratch(Stream& stream) : stream_(stream) {}

  // Throws RunError as the allocator does.
  void* take(size_t bytes) override {
    held_.push_back(
        stream_.device().allocator().allocate(int64_t(bytes), MemoryCategory::workspace, stream_));
    return held_.back()->data;
  }
  void give(void* memory) noexcept override {
    const auto found = std::ranges::find(held_, memory, [](const Buffer& b) { return b->data; });
    if (found == held_.end()) return log::warn("bug: scratch memory that was not taken comes back");
    held_.erase(found);
  }

 private:
  Stream& stream_;
  std::vector<Buffer> held_;
};

}  // namespace mtrain::ops
