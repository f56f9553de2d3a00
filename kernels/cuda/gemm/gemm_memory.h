// Memory for the GEMMs of a stream.
#pragma once
#include "kernels/cuda/gemm/gemm_api.h"

namespace mtrain::kernels::cuda {

// Allocated and released in the stream's order.
class GemmMemory {
 public:
  GemmMemory(const GemmDevice& device, int64_t bytes, CUstream_st* stream)
      : device_(device),
        stream_(stream),
        memory_(bytes > 0 ? device.take(size_t(bytes), stream) : nullptr) {}
  ~GemmMemory() {
    if (memory_) device_.give(memory_, stream_);
  }
  GemmMemory(const GemmMemory&) = delete;
  GemmMemory& operator=(const GemmMemory&) = delete;
  void* get() const { return memory_; }

 private:
  const GemmDevice& device_;
  CUstream_st* stream_;
  void* memory_;
};

}  // namespace mtrain::kernels::cuda
