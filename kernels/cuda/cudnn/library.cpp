#include <fmt/core.h>

#include "base/shared_library.h"
#include "kernels/cuda/cudnn/api.h"

namespace mtrain::kernels::cuda {
namespace {

CudnnLibrary open() {
  SharedLibrary file("libcudnn.so.9");  // the API keeps its numbers within a major version
  CudnnApi api;
  file.find(api.create, "cudnnCreate");
  file.find(api.set_stream, "cudnnSetStream");
  file.find(api.version, "cudnnGetVersion");
  file.find(api.error_string, "cudnnGetErrorString");
  return {api, file.handle(), file.problem()};
}

}  // namespace

const CudnnLibrary& cudnn_library() {
  static const CudnnLibrary lib = open();  // loaded once per process
  return lib;
}

std::string cudnn_description() {
  const CudnnLibrary& lib = cudnn_library();
  if (!lib.problem.empty()) return "no cuDNN (" + lib.problem + ")";
  const size_t v = lib.api.version();
  return fmt::format("cuDNN {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

}  // namespace mtrain::kernels::cuda
