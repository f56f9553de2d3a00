// Failed calls of the CUDA libraries throw RunError with the call, the file and the line, and the
// library's own text.
#pragma once

namespace mtrain::kernels::cuda {

struct Place {
  const char *call, *file;
  int line;
};

// status: a cudaError_t.
[[noreturn]] void fail_runtime(int status, const Place& at);

inline void check_runtime(int status, const Place& at) {
  if (status != 0) [[unlikely]]
    fail_runtime(status, at);
}

}  // namespace mtrain::kernels::cuda

#define MT_PLACE(call) (::mtrain::kernels::cuda::Place{call, __FILE__, __LINE__})
#define MT_CUDA(call) ::mtrain::kernels::cuda::check_runtime(int(call), MT_PLACE(#call))
