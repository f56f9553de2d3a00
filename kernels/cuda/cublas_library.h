// cuBLASLt, loaded when the first matmul needs it. Loading takes 200 MB and most of a second, a
// cost that a run without a GPU avoids. A build with cuBLASLt also starts if the library is
// missing.
#pragma once
#include <cublasLt.h>

namespace mtrain::kernels::cuda {

struct Cublas {
#define MT_CUBLAS_FUNCTIONS(F)            \
  F(cublasLtCreate)                       \
  F(cublasLtGetStatusName)                \
  F(cublasLtGetVersion)                   \
  F(cublasLtMatmulAlgoCheck)              \
  F(cublasLtMatmulAlgoConfigGetAttribute) \
  F(cublasLtGetStatusString)              \
  F(cublasLtMatmul)                       \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)
#define MT_CUBLAS_MEMBER(name) decltype(&::name) name;
  MT_CUBLAS_FUNCTIONS(MT_CUBLAS_MEMBER)
#undef MT_CUBLAS_MEMBER
};

// Throws UserError if the library is missing or lacks a function.
const Cublas& cublas();

}  // namespace mtrain::kernels::cuda
