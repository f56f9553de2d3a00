// GEMMs, and what they compute beside their sums. Matrices are row-major, and sums are fp32.
#pragma once
#include "ops/operand.h"
#include "ops/operation.h"

namespace mtrain::ops {

struct Transpose {
  bool a = false, b = false;
};
// Returns op(a) op(b) + bias_N as a new (M, N) tensor of the dtype `out`. The bias is optional; a,
// b and the bias may each be fp32, bf16 or fp16. `name` appears in profiles and traces.
Tensor matmul(Stream& stream, const char* name, const Tensor& a, const Tensor& b, Transpose t,
              DType out, const Tensor& bias_N = {});
// Writes op(a) op(b) + bias_N into c_MN. With `accumulate` it adds to c_MN instead; c_MN is then
// fp32, and there is no bias. `t` describes the matrices: an operand whose memory holds the
// transpose counts as the matrix itself. Quantized operands need memory whose rows run along K;
// kernels/matmul.h lists the sizes that fit. With `fast` the tensor cores keep the sums of their
// GEMM in a shorter format of their own.
void matmul_into(Stream& stream, const char* name, const Operand& a, const Operand& b, Transpose t,
                 const Tensor& c_MN, bool accumulate = false, const Tensor& bias_N = {},
                 bool fast = false);

// matmul_gelu returns x = op(a) op(b) + bias_N and y = gelu(x), in gelu's tanh form. On a GPU the
// GEMM itself computes y, from sums that are not rounded yet; on a CPU a second launch does.
struct GeluResult {
  Tensor x_MN, y_MN;
};
GeluResult matmul_gelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                       Transpose t, const Tensor& bias_N = {});
// matmul_dgelu takes dL/dy = op(a) op(b) for y = gelu(x) and returns dL/dx. It also returns a
// recomputed gelu(x): the y of the forward need not be kept. It makes two launches. On a GPU this
// gelu(x) is computed from the rounded x, unlike the forward's.
struct GeluGradients {
  Tensor dx_MN, y_MN;
};
GeluGradients matmul_dgelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                           Transpose t, const Tensor& x_MN);
// Writes dy^T x into dw_OI, or adds it with `accumulate`; adds the sums of the columns of dy, which
// is then plain, to db_O (optional). Both results are fp32. On a CPU a second launch computes db_O.
void weight_gradient_into(Stream& stream, const char* name, const Operand& dy_TO,
                          const Operand& x_TI, const Tensor& dw_OI, bool accumulate,
                          const Tensor& db_O);

}  // namespace mtrain::ops
