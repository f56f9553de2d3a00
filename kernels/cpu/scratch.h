// Memory that a CPU kernel keeps between calls. glibc returns large blocks to the system at every
// free, and touching new ones costs a page fault for each 4 KiB. (simd.h has a different Scratch
// for the vector files: memory of one call.)
#pragma once
#include <cstddef>

namespace mtrain::kernels::cpu {

// A block of memory that only grows; its content is lost when it grows. It is not thread-safe: each
// thread (thread_local) or each owner has its own.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns memory that is aligned to 64 bytes. Throws RunError if the system has no memory left.
  void* bytes(size_t count);
  float* floats(size_t count) { return static_cast<float*>(bytes(count * sizeof(float))); }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mtrain::kernels::cpu
