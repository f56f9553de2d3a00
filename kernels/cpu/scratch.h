// Memory that a kernel keeps between calls. glibc hands large blocks back to the system at every
// free, and touching them again costs a page fault per 4 KiB.
#pragma once
#include <cstddef>

namespace mtrain::kernels::cpu {

// A block that only grows; its content is lost when it does. Not thread safe: one per thread
// (thread_local) or per owner.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* bytes(
      size_t count);  // aligned to 64 bytes; throws RunError where the system has no memory left
  float* floats(size_t count) { return static_cast<float*>(bytes(count * sizeof(float))); }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mtrain::kernels::cpu
