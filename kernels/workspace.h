// Where CUDA kernels find memory for the time of their launch: their caller says it. This header
// knows nothing of CUDA.
#pragma once
#include <cstddef>
#include <utility>

namespace mtrain::kernels {

// Memory of one stream, in its order: memory that was given back may be taken again at once.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual void* allocate(size_t bytes) = 0;  // aligned to 512 bytes; throws where there is none
  virtual void release(void* memory) noexcept = 0;
};

// While it lives, kernels that this thread launches take their memory from `memory`.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(Workspace& memory) : before_(std::exchange(current_, &memory)) {}
  ~WorkspaceScope() { current_ = before_; }
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;

  static Workspace* current() { return current_; }  // null: no caller has said it

 private:
  static inline thread_local constinit Workspace* current_ = nullptr;
  Workspace* const before_;
};

}  // namespace mtrain::kernels
