// The Newton-Schulz iteration that makes a matrix nearly semi-orthogonal (Jordan et al. 2024,
// "Muon"): X <- a X + (b G + c G^2) X with G = X X^T. A matrix with more rows than columns is
// multiplied on the other side, X (b G + c G^2) with G = X^T X, which is the smaller one.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace mtrain::optim {

struct NewtonSchulz {
  int64_t steps = 5;
  // a, b, c: three numbers for all steps, or three for each step.
  std::vector<double> coefficients{3.4445, -4.775, 2.0315};
  double eps = 1e-7;        // replaces a smaller norm, by which the matrix is divided
  DType gemm = DType::f32;  // of the operands of the GEMMs, fp32 or bf16; sums are fp32
  // Returns the floating-point operations of one matrix.
  double flops(int64_t rows, int64_t columns) const;
};
// Divides x_RC (fp32) by its norm, and then replaces it by the result of the iteration.
void orthogonalize(Stream& stream, const NewtonSchulz& o, const Tensor& x_RC);

}  // namespace mtrain::optim
