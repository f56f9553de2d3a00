// Where CUDA kernels find memory for the time of their launch: their caller says it. This header
// knows nothing of CUDA.
#pragma once
#include <cstddef>
#include <utility>

namespace mtrain::kernels {

// Memory of one stream, in its order: memory that was given back may be taken again at once.
class ScratchMemory {
 public:
  virtual ~ScratchMemory() = default;
  virtual void* take(size_t bytes) = 0;  // aligned to 512 bytes; throws where there is none
  virtual void give(void* memory) noexcept = 0;
};

// While it lives, kernels that this thread launches take their memory from `memory`.
class ScratchFrom {
 public:
  explicit ScratchFrom(ScratchMemory& memory) : before_(std::exchange(current_, &memory)) {}
  ~ScratchFrom() { current_ = before_; }
  ScratchFrom(const ScratchFrom&) = delete;
  ScratchFrom& operator=(const ScratchFrom&) = delete;

  static ScratchMemory* current() { return current_; }  // null: no caller has said it

 private:
  static inline thread_local constinit ScratchMemory* current_ = nullptr;
  ScratchMemory* const before_;
};

}  // namespace mtrain::kernels
