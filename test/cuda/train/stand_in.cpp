// The one CUDA kernel that cuda_on_cpu cannot run: cuBLASLt's.
#include "kernels/matmul.h"

namespace mtrain::kernels::cuda {

void run(const Matmul& m, CUstream_st*) { cpu::run(m); }

}  // namespace mtrain::kernels::cuda
