// Memory that the kernels of one launch take for its time: buffers of their stream, in the category
// workspace. So they are counted, come from a graph's memory while it is captured, and make the
// allocator give cached memory back where the device has no more.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/workspace.h"

namespace mtrain::ops {

// The rank's host thread uses it within the launch, where CUDA's launches do their work.
class LaunchWorkspace final : public kernels::Workspace {
 public:
  explicit LaunchWorkspace(Stream& stream) : stream_(stream) {}

  // Throws RunError as the allocator does.
  void* allocate(size_t bytes) override {
    held_.push_back(stream_.device().allocator().allocate(
        int64_t(bytes), device::MemoryCategory::workspace, stream_));
    return held_.back()->data;
  }
  void release(void* memory) noexcept override {
    const auto found =
        std::ranges::find(held_, memory, [](const device::Buffer& b) { return b->data; });
    if (found == held_.end()) return log::warn("bug: scratch memory that was not taken comes back");
    held_.erase(found);
  }

 private:
  Stream& stream_;
  std::vector<device::Buffer> held_;
};

}  // namespace mtrain::ops
