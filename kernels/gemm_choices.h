// These functions choose the cuBLASLt algorithm of each GEMM on the current GPU by measuring. GEMMs
// and choices are text: ranks exchange them, and checkpoints store them. Without a choice, a GEMM
// uses the first algorithm of cuBLASLt's heuristic.
#pragma once
#include <string>

struct CUstream_st;

namespace mtrain::kernels::cuda {

// Returns the most expensive GEMMs that have run without a choice, one line for each.
std::string unchosen_gemms();
// Measures GEMMs (lines of the function above, from any rank) on separate memory, and returns
// choices. It skips and reports GEMMs that cannot be measured, and those that have not begun when
// `seconds` have passed. The host waits for the stream.
std::string time_gemms(const std::string& gemms, double seconds, CUstream_st* stream);
// Uses the choices from the next call on. Choices from a different version of the library or kind
// of GPU are ignored and reported.
void use_gemm_choices(const std::string& choices);
std::string gemm_choices();

}  // namespace mtrain::kernels::cuda
