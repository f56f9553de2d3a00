// What the caller of a launch provides to CUDA kernels: the memory that they need while they run,
// and the way to start them. This header includes no CUDA header.
#pragma once
#include <cstddef>
#include <utility>

namespace mtrain::kernels {

// Memory for the work of one stream, allocated and released in the stream's order: released memory
// can be reused immediately.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual void* allocate(size_t bytes) = 0;  // aligned to 512 bytes; throws if there is none
  virtual void release(void* memory) noexcept = 0;
  // Whether kernels of this work may begin before the previous kernel of the stream has ended
  // (kernels/cuda/device/dependent_launch.h).
  virtual bool dependent_launch() const { return false; }
};

// While a WorkspaceScope lives, kernels that this thread launches take their memory from
// `workspace`.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(Workspace& workspace) : before_(std::exchange(current_, &workspace)) {}
  ~WorkspaceScope() { current_ = before_; }
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;

  static Workspace* current() { return current_; }  // null outside of any scope

 private:
  static inline thread_local constinit Workspace* current_ = nullptr;
  Workspace* const before_;
};

}  // namespace mtrain::kernels
