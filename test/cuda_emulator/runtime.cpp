// The CUDA calls of the kernels' host code, on host memory.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "grid.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/check.h"
#include "kernels/workspace.h"

struct CUstream_st;

namespace mtrain::kernels::cuda {

void fail_runtime(int, const Place&) { std::abort(); }

// Not from the launch's Workspace, though it is asked for: streams here have threads of their
// own, and only the host's may allocate.
void* take_scratch(size_t bytes, CUstream_st*) {
  cpu_grid::count_scratch(WorkspaceScope::current() != nullptr);
  void* memory = ::operator new(bytes, std::align_val_t(256));
  std::memset(memory, 0xff, bytes);  // NaN: what nobody wrote shows
  return memory;
}
void give_scratch(void* memory, CUstream_st*) noexcept {
  ::operator delete(memory, std::align_val_t(256));
}
int multiprocessors() { return 6; }
int64_t most_shared_memory() { return 40 * 1024; }  // tests' rows are longer

void copy_memory(void* to, const void* from, int64_t bytes, CUstream_st*) {
  std::memmove(to, from, size_t(bytes));
}
void clear_memory(void* memory, int64_t bytes, CUstream_st*) {
  std::memset(memory, 0, size_t(bytes));
}

// No GPU that cuDNN could use: our own kernels are what runs here.
bool attention_by_cudnn(const AttentionForward&, CUstream_st*) { return false; }
bool attention_by_cudnn(const AttentionBackward&, CUstream_st*) { return false; }

}  // namespace mtrain::kernels::cuda
