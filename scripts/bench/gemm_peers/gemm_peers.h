// The GEMMs of oneDNN and OpenBLAS, to compare ours with. A library that is not installed is left
// out.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/matmul.h"

namespace mtrain::bench {

struct GemmPeer {
  std::string name;
  std::function<void(const kernels::Matmul&)> run;  // on the current thread pool
};

// Returns the libraries that multiply operands of this type, limited to the instruction set of
// MTRAIN_CPU_ISA. Sets environment variables, which the libraries read once: call it before there
// are threads.
std::vector<GemmPeer> gemm_peers(DType dtype);

}  // namespace mtrain::bench
