// Defines the CUDA calls of the kernels' host code, on the memory of the host.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "grid.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/grouped/grouped_engine.h"
#include "kernels/workspace.h"

struct CUstream_st;

namespace mtrain::kernels::cuda {

void fail_runtime(int, const Place&) { std::abort(); }

// Counts whether the launch provides workspace, but does not use it: streams have threads of their
// own here, and only the host's thread may allocate.
void* take_scratch(size_t bytes, CUstream_st*) {
  cpu_grid::count_workspace(WorkspaceScope::current() != nullptr);
  void* memory = ::operator new(bytes, std::align_val_t(256));
  std::memset(memory, 0xff, bytes);  // NaN, which exposes reads of unwritten memory
  return memory;
}
void give_scratch(void* memory, CUstream_st*) noexcept {
  ::operator delete(memory, std::align_val_t(256));
}
bool launches_dependent(const void*) {
  const Workspace* const launch = WorkspaceScope::current();
  if (!launch || !launch->dependent_launch()) return false;
  cpu_grid::count_dependent_launch();
  return true;
}
int multiprocessors() { return 6; }
int64_t max_shared_memory() { return 40 * 1024; }  // the rows of some tests are longer
bool block_can_have(size_t shared_memory) { return shared_memory <= cpu_grid::shared_limit(); }

void copy_memory(void* to, const void* from, int64_t bytes, CUstream_st*) {
  std::memmove(to, from, size_t(bytes));
}
void clear_memory(void* memory, int64_t bytes, CUstream_st*) {
  std::memset(memory, 0, size_t(bytes));
}

// There is no GPU for cuDNN, so our own kernels run.
bool attention_by_cudnn(const AttentionForward&, CUstream_st*) {
  cpu_grid::count_cudnn_call();
  return false;
}
bool attention_by_cudnn(const AttentionBackward&, CUstream_st*) {
  cpu_grid::count_cudnn_call();
  return false;
}
std::string cudnn_engine(const AttentionForward&) { return ""; }
std::string cudnn_engine(const AttentionBackward&) { return ""; }

// Nor is there one for CUTLASS.
bool grouped_by_cutlass(const GroupedMatmul&, CUstream_st*) { return false; }
bool grouped_by_cutlass(const GroupedWeightGrad&, CUstream_st*) { return false; }

}  // namespace mtrain::kernels::cuda
