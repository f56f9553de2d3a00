// cuDNN 9, loaded at run time: the functions that mtrain calls itself, and the handle of the
// library, in which the C++ frontend finds the others. It needs no header of cuDNN or CUDA.
#pragma once
#include <cstddef>
#include <string>

struct CUstream_st;
struct cudnnContext;

namespace mtrain::kernels::cuda {

// cuDNN's functions. A status of 0 is success.
struct CudnnApi {
  int (*create)(cudnnContext** handle);
  int (*set_stream)(cudnnContext* handle, CUstream_st* stream);
  size_t (*version)();
  const char* (*error_string)(int status);
};

struct CudnnLibrary {
  CudnnApi api{};
  void* handle = nullptr;  // of dlopen
  std::string problem;     // why it is not loaded; "" if it is
};

// libcudnn.so.9, loaded at the first call.
const CudnnLibrary& cudnn_library();

// Returns "cuDNN 9.19.0", or why there is none.
std::string cudnn_description();

}  // namespace mtrain::kernels::cuda
