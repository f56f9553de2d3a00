#include <cuda_runtime_api.h>

#include "mirror.h"

namespace mtrain::test {
namespace {
void check(cudaError_t status) {
  INFO(cudaGetErrorString(status));
  REQUIRE(status == cudaSuccess);
}
}  // namespace

void* device_take(size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  return memory;
}
void device_give(void* memory) { cudaFree(memory); }
void to_device(void* device, const void* host, size_t bytes) {
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, device_stream()));
  check(cudaStreamSynchronize(device_stream()));
}
void to_host(void* host, const void* device, size_t bytes) {
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, device_stream()));
  check(cudaStreamSynchronize(device_stream()));
}
CUstream_st* device_stream() {
  static cudaStream_t stream = nullptr;
  if (!stream) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
void for_each_order(
    const std::function<void()>& fn) {  // a race gives different results in two runs
  fn();
  fn();
}
void for_each_shared_memory(const std::function<void()>& fn) { fn(); }
int64_t size_of_test(int64_t, int64_t on_gpu) { return on_gpu; }

}  // namespace mtrain::test
