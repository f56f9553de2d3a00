#include <cstring>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/device/scratch_cache.h"

namespace mtrain::kernels::cuda {

void fail_runtime(int status, const Place& at) {
  const char* slash = std::strrchr(at.file, '/');
  const auto error = cudaError_t(status);
  throw RunError(fmt::format("{} failed at {}:{}: {} ({})", at.call, slash ? slash + 1 : at.file,
                             at.line, cudaGetErrorString(error), cudaGetErrorName(error)));
}

namespace {

void* take_from_device(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // is not sticky
    size_t free = 0, all = 0;
    (void)cudaMemGetInfo(&free, &all);
    throw RunError(
        fmt::format("a kernel needs {} MiB for intermediate results, {} MiB of the "
                    "GPU's {} MiB are free",
                    (bytes >> 20) + 1, free >> 20, all >> 20),
        "lower train.micro_batch_size, or recompute activations (recompute.granularity)");
  }
  check_runtime(status, MT_PLACE("cudaMalloc for a kernel's intermediate results"));
  return memory;
}

ScratchCache& scratch() {
  static ScratchCache& cache = *new ScratchCache(take_from_device);  // for the process's life
  return cache;
}

}  // namespace

void* take_scratch(size_t bytes, CUstream_st* stream) {
  int device = 0;
  MT_CUDA(cudaGetDevice(&device));
  return scratch().take(bytes, device, stream);
}

void give_scratch(void* memory, CUstream_st* stream) noexcept { scratch().give(memory, stream); }

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
