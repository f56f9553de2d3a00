// The memory that CUDA kernels need while they run: the caller of a launch provides it. This header
// includes nothing of CUDA.
#pragma once
#include <cstddef>
#include <utility>

namespace mtrain::kernels {

// Memory for work of one stream, taken and given back in the stream's order: what was given back
// may be taken again at once.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual void* allocate(size_t bytes) = 0;  // aligned to 512 bytes; throws where there is none
  virtual void release(void* memory) noexcept = 0;
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
