// Memory that the kernels of one launch need while it runs. It comes from the rank's allocator, as
// buffers of the launch's stream in the category `workspace`. It is therefore counted, and comes
// from a graph's pool during a capture. The allocator gives cached memory back for it if the device
// has no more.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/workspace.h"

namespace mtrain::ops {

// Only the rank's host thread uses it, since the work of a CUDA launch runs on that thread.
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
    if (found == held_.end())
      return log::warn("bug: a kernel gave back workspace that it had not taken");
    held_.erase(found);
  }
  bool dependent_launch() const override { return stream_.device().dependent_launch(); }

 private:
  Stream& stream_;
  std::vector<device::Buffer> held_;
};

}  // namespace mtrain::ops
