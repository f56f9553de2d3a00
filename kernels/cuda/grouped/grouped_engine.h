// The two engines of grouped GEMMs: mtrain's own kernel, and CUTLASS's. This header includes no
// CUDA header.
#pragma once
#include <string>

#include "kernels/grouped_matmul.h"

namespace mtrain::kernels::cuda {

// mtrain's own kernels (kernels/cuda/grouped_matmul.cu).
void own_grouped_gemm(const GroupedMatmul& m, CUstream_st* stream);
void own_grouped_gemm(const GroupedWeightGrad& m, CUstream_st* stream);

// Return whether CUTLASS is the engine of this GEMM, and has computed it. The first time, both
// engines compute it and their results are compared; C then has its result, too.
bool grouped_by_cutlass(const GroupedMatmul& m, CUstream_st* stream);
bool grouped_by_cutlass(const GroupedWeightGrad& m, CUstream_st* stream);

// CUTLASS's kernels, whatever was chosen: for tests and benches. Return "", or why the current GPU
// or this build cannot compute it.
std::string cutlass_grouped_gemm(const GroupedMatmul& m, CUstream_st* stream);
std::string cutlass_grouped_gemm(const GroupedWeightGrad& m, CUstream_st* stream);
// Returns "CUTLASS 4.2.0", or "no CUTLASS".
std::string cutlass_description();

// As the functions of kernels/gemm_choices.h, for lines that begin with "grouped".
std::string unchosen_grouped_gemms();
std::string time_grouped_gemms(const std::string& gemms, double seconds, CUstream_st* stream);
void use_grouped_gemm_choices(const std::string& choices);
std::string grouped_gemm_choices();
// Splits a text into the lines of grouped GEMMs and the other lines.
struct GemmLines {
  std::string grouped, others;
};
GemmLines split_gemm_lines(const std::string& text);

}  // namespace mtrain::kernels::cuda
