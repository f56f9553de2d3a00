// For builds without CUTLASS: the GEMMs of experts are computed by mtrain's own kernels.
#include "kernels/cuda/cutlass/grouped_gemm.h"

namespace mtrain::kernels::cuda {

std::string why_no_cutlass() {
  return "this build lacks CUTLASS (scripts/install-deps.sh --cutlass)";
}
std::string cutlass_version() { return "none"; }
std::string run_cutlass(const CutlassCall&, CUstream_st*) { return why_no_cutlass(); }

}  // namespace mtrain::kernels::cuda
