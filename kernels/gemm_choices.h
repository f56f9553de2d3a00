// These functions choose, by measuring, which algorithm of cuBLASLt computes which GEMM on the
// current GPU. GEMMs and choices are text: ranks tell them each other, and checkpoints keep them.
// Without a choice a GEMM takes the algorithm that the library names first.
#pragma once
#include <string>

struct CUstream_st;

namespace mtrain::kernels::cuda {

// Returns the GEMMs that have run without a choice, a line for each; only those that cost most.
std::string unchosen_gemms();
// Measures GEMMs (lines of the function above, of any rank) on memory of its own, and returns
// choices. A GEMM that cannot be measured is left out, and told; so are those that are not begun
// when `seconds` have passed. The host waits for the stream.
std::string time_gemms(const std::string& gemms, double seconds, CUstream_st* stream);
// Uses the choices from the next call on. Those of another version of the library, or of another
// kind of GPU, are ignored, and told.
void use_gemm_choices(const std::string& choices);
std::string gemm_choices();

}  // namespace mtrain::kernels::cuda
