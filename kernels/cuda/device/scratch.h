// Memory for a few launches of one operation, allocated and released in the stream's order; copies;
// and the state of a stream.
#pragma once
#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace mtrain::kernels::cuda {

// Allocate memory from the launch's Workspace (kernels/workspace.h) and release it. Without a
// Workspace, as in programs that launch kernels on their own streams, the memory comes from CUDA's
// pool.
void* take_scratch(size_t bytes, CUstream_st* stream);
void give_scratch(void* memory, CUstream_st* stream) noexcept;

// Copy or zero a range. The two ranges of a copy must be the same or must not overlap.
void copy_memory(void* to, const void* from, int64_t bytes, CUstream_st* stream);
void clear_memory(void* memory, int64_t bytes, CUstream_st* stream);

bool is_capturing(CUstream_st* stream);  // whether its work is recorded as a graph
// Called outside of captures, after a library has refused a call. Throws RunError if earlier work
// has failed on the GPU; otherwise clears the error state that the refused call has set.
void require_healthy(CUstream_st* stream);

template <class T>
class Scratch {
 public:
  Scratch(int64_t count, CUstream_st* stream)
      : memory_(count > 0 ? take_scratch(size_t(count) * sizeof(T), stream) : nullptr),
        stream_(stream) {}
  ~Scratch() {
    if (memory_) give_scratch(memory_, stream_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* get() const { return static_cast<T*>(memory_); }

 private:
  void* memory_;
  CUstream_st* stream_;
};

}  // namespace mtrain::kernels::cuda
