#include <dlfcn.h>

#include <fmt/core.h>

#include "kernels/cuda/cudnn/api.h"

namespace mtrain::kernels::cuda {
namespace {

CudnnLibrary open() {
  constexpr const char* kFile =
      "libcudnn.so.9";  // the API keeps its numbers within a major version
  CudnnLibrary lib;
  void* const handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    lib.problem = dlerror();
    return lib;
  }
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (!function && lib.problem.empty()) lib.problem = fmt::format("{} has no {}", kFile, name);
  };
  CudnnApi& api = lib.api;
  find(api.create, "cudnnCreate");
  find(api.destroy, "cudnnDestroy");
  find(api.set_stream, "cudnnSetStream");
  find(api.version, "cudnnGetVersion");
  find(api.error_string, "cudnnGetErrorString");
  find(api.last_error_string, "cudnnGetLastErrorString");
  find(api.create_descriptor, "cudnnBackendCreateDescriptor");
  find(api.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  find(api.set_attribute, "cudnnBackendSetAttribute");
  find(api.get_attribute, "cudnnBackendGetAttribute");
  find(api.finalize, "cudnnBackendFinalize");
  find(api.execute, "cudnnBackendExecute");
  return lib;
}

}  // namespace

const CudnnLibrary& cudnn_library() {
  static const CudnnLibrary lib = open();  // a fact of the process
  return lib;
}

std::string cudnn_description() {
  const CudnnLibrary& lib = cudnn_library();
  if (!lib.problem.empty()) return "no cuDNN (" + lib.problem + ")";
  const size_t v = lib.api.version();
  return fmt::format("cuDNN {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

}  // namespace mtrain::kernels::cuda
