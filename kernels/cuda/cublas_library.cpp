#include "kernels/cuda/cublas_library.h"

#include "base/error.h"
#include "base/shared_library.h"

namespace mtrain::kernels::cuda {
namespace {

struct Library {
  Cublas functions{};
  std::string problem;  // "" if it is loaded
};

Library open() {
  // The major version whose header this was built with.
  SharedLibrary file(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR));
  Cublas functions{};
#define MT_CUBLAS_FIND(name) file.find(functions.name, #name);
  MT_CUBLAS_FUNCTIONS(MT_CUBLAS_FIND)
#undef MT_CUBLAS_FIND
  return {functions, file.problem()};
}

}  // namespace

const Cublas& cublas() {
  static const Library lib = open();  // loaded once per process
  if (!lib.problem.empty())
    throw UserError("matmul on a GPU needs cuBLASLt: " + lib.problem,
                    "install CUDA's libraries, or add their folder to LD_LIBRARY_PATH");
  return lib.functions;
}

}  // namespace mtrain::kernels::cuda
