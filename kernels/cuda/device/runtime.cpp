#include <array>
#include <atomic>
#include <cstring>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/workspace.h"

namespace mtrain::kernels::cuda {

void fail_runtime(int status, const Place& at) {
  const char* slash = std::strrchr(at.file, '/');
  const auto error = cudaError_t(status);
  throw RunError(fmt::format("{} failed at {}:{}: {} ({})", at.call, slash ? slash + 1 : at.file,
                             at.line, cudaGetErrorString(error), cudaGetErrorName(error)));
}

// Training does not use CUDA's pool: in a capture every use of it would add two nodes to the graph,
// and no allocator counts its memory.
void* take_scratch(size_t bytes, CUstream_st* stream) {
  if (Workspace* const memory = WorkspaceScope::current()) return memory->allocate(bytes);
  void* memory = nullptr;
  MT_CUDA(cudaMallocAsync(&memory, bytes, stream));
  return memory;
}

void give_scratch(void* memory, CUstream_st* stream) noexcept {
  if (Workspace* const from = WorkspaceScope::current()) return from->release(memory);
  (void)cudaFreeAsync(memory, stream);
}

namespace {
int attribute_here(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  MT_CUDA(cudaGetDevice(&device));
  MT_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}
}  // namespace
bool launches_dependent(const void* kernel) {
  const Workspace* const launch = WorkspaceScope::current();
  if (!launch || !launch->dependent_launch()) return false;
  constexpr int kMaxDevices = 64;
  enum : int8_t { unknown, no, yes };
  static std::array<std::atomic<int8_t>, kMaxDevices> known{};
  int device = 0;
  MT_CUDA(cudaGetDevice(&device));
  MT_CHECK(device < kMaxDevices, "CUDA device {}", device);
  if (const int8_t answer = known[size_t(device)]; answer != unknown) return answer == yes;
  cudaFuncAttributes code{};
  int driver = 0;
  MT_CUDA(cudaFuncGetAttributes(&code, kernel));
  MT_CUDA(cudaDriverGetVersion(&driver));
  const bool can = can_launch_dependent(code.ptxVersion, driver);
  known[size_t(device)] = can ? yes : no;
  return can;
}

int multiprocessors() { return attribute_here(cudaDevAttrMultiProcessorCount); }
int64_t max_shared_memory() { return attribute_here(cudaDevAttrMaxSharedMemoryPerBlockOptin); }
bool block_can_have(size_t shared_memory) { return int64_t(shared_memory) <= max_shared_memory(); }

void copy_memory(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  if (to != from)
    MT_CUDA(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, stream));
}
void clear_memory(void* memory, int64_t bytes, CUstream_st* stream) {
  MT_CUDA(cudaMemsetAsync(memory, 0, size_t(bytes), stream));
}

bool is_capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  MT_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void require_healthy(CUstream_st* stream) {
  (void)cudaGetLastError();  // an error of the GPU itself persists, and the next call returns it
  if (const cudaError_t status = cudaStreamQuery(stream); status != cudaErrorNotReady)
    MT_CUDA(status);
}

}  // namespace mtrain::kernels::cuda
