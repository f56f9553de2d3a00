#include <atomic>
#include <cstring>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/device/check.h"

namespace mtrain::kernels::cuda {

void fail_runtime(int status, const Place& at) {
  const char* slash = std::strrchr(at.file, '/');
  const auto error = cudaError_t(status);
  throw RunError(fmt::format("{} failed at {}:{}: {} ({})", at.call, slash ? slash + 1 : at.file,
                             at.line, cudaGetErrorString(error), cudaGetErrorName(error)));
}

void* take_scratch(size_t bytes, CUstream_st* stream) {
  // The pool would else return its memory to the system at every synchronization.
  static std::atomic<uint64_t> kept{0};  // one bit per device
  int device = 0;
  MT_CUDA(cudaGetDevice(&device));
  if (const uint64_t bit = uint64_t(1) << (device % 64); !(kept.load() & bit)) {
    cudaMemPool_t pool = nullptr;
    MT_CUDA(cudaDeviceGetDefaultMemPool(&pool, device));
    uint64_t all = UINT64_MAX;
    MT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    kept.fetch_or(bit);
  }
  void* memory = nullptr;
  MT_CUDA(cudaMallocAsync(&memory, bytes, stream));
  return memory;
}

void give_scratch(void* memory, CUstream_st* stream) noexcept { cudaFreeAsync(memory, stream); }

namespace {
int attribute_here(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  MT_CUDA(cudaGetDevice(&device));
  MT_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}
}  // namespace
int multiprocessors() { return attribute_here(cudaDevAttrMultiProcessorCount); }
int64_t most_shared_memory() { return attribute_here(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

void copy_memory(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  if (to != from)
    MT_CUDA(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, stream));
}
void clear_memory(void* memory, int64_t bytes, CUstream_st* stream) {
  MT_CUDA(cudaMemsetAsync(memory, 0, size_t(bytes), stream));
}

}  // namespace mtrain::kernels::cuda
