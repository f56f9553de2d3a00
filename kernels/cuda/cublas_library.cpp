#include "kernels/cuda/cublas_library.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace mtrain::kernels::cuda {
namespace {

struct Library {
  Cublas functions{};
  std::string problem;  // "" where it is loaded
};

Library open() {
  Library lib;
  // The major version whose header this was built with.
  const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    lib.problem = dlerror();
    return lib;
  }
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (!function && lib.problem.empty()) lib.problem = fmt::format("{} has no {}", file, name);
  };
#define MT_CUBLAS_FIND(name) find(lib.functions.name, #name);
  MT_CUBLAS_FUNCTIONS(MT_CUBLAS_FIND)
#undef MT_CUBLAS_FIND
  return lib;
}

}  // namespace

const Cublas& cublas() {
  static const Library lib = open();  // a fact of the process
  if (!lib.problem.empty())
    throw UserError("matmul on a GPU needs cuBLASLt: " + lib.problem,
                    "install CUDA's libraries, or add their folder to LD_LIBRARY_PATH");
  return lib.functions;
}

}  // namespace mtrain::kernels::cuda
