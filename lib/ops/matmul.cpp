#include "ops/matmul.h"

#include "kernels/matmul.h"
#include "ops/activation.h"
#include "ops/enqueue.h"
#include "ops/reduce.h"

MT_KERNEL(Matmul)

namespace mtrain::ops {

namespace {
// Quantized operands have memory whose rows run along K.
kernels::Matmul describe(const Device& device, const Operand& a_MK, const Operand& b_KN,
                         Transpose t, const Tensor& c) {
  const Tensor &a = a_MK.data, &b = b_KN.data;
  MT_CHECK(a.shape().rank() == 2 && b.shape().rank() == 2, "matmul of {} and {}", a.shape().str(),
           b.shape().str());
  const bool trans_a = t.a != a_MK.transposed, trans_b = t.b != b_KN.transposed;
  kernels::Matmul m{.a = a,
                    .b = b,
                    .c_MN = c,
                    .M = a.dim(trans_a ? 1 : 0),
                    .N = b.dim(trans_b ? 0 : 1),
                    .K = a.dim(trans_a ? 0 : 1),
                    .trans_a = trans_a,
                    .trans_b = trans_b,
                    .bf16 = bf16_of(device),
                    .a_inverse = a_MK.inverse,
                    .b_inverse = b_KN.inverse,
                    .a_blocks = a_MK.blocks,
                    .b_blocks = b_KN.blocks,
                    .sm_margin = device.gemm_sm_margin()};
  MT_CHECK(b.dim(trans_b ? 1 : 0) == m.K, "matmul: a {}{} and b {}{} do not share K",
           a.shape().str(), trans_a ? "^T" : "", b.shape().str(), trans_b ? "^T" : "");
  MT_SHAPE("matmul", c, {m.M, m.N});
  MT_FLOAT("matmul", c);
  if (is_float8(m)) {
    MT_CHECK(kernels::float8_fits(m),
             "matmul: a {} {} and b {} {}: rows run along K, K and N are multiples of {}, one is "
             "e4m3, and blocks divide K",
             dtype_name(a.dtype()), a.shape().str(), dtype_name(b.dtype()), b.shape().str(),
             kFloat8Multiple);
    return m;
  }
  MT_FLOAT("matmul", a);
  MT_FLOAT("matmul", b);
  return m;
}
}  // namespace

Tensor matmul(Stream& stream, const char* name, const Tensor& a, const Tensor& b, Transpose t,
              DType out, const Tensor& bias_N) {
  Tensor c = Tensor::empty(stream, {a.dim(t.a ? 1 : 0), b.dim(t.b ? 0 : 1)}, out);
  matmul_into(stream, name, a, b, t, c, false, bias_N);
  return c;
}

void matmul_into(Stream& stream, const char* name, const Operand& a, const Operand& b, Transpose t,
                 const Tensor& c_MN, bool accumulate, const Tensor& bias_N, bool fast) {
  if (accumulate) MT_DTYPE("matmul_into", c_MN, DType::f32);
  auto args = describe(stream.device(), a, b, t, c_MN);
  if (bias_N) {
    MT_SHAPE("matmul", bias_N, {args.N});
    MT_FLOAT("matmul", bias_N);
  }
  args.bias_N = bias_N;
  args.accumulate = accumulate;
  args.fast = fast && a.quantized();
  enqueue(stream, name, args);
}

GeluResult matmul_gelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                       Transpose t, const Tensor& bias_N) {
  if (!stream.device().is_cuda()) {
    const Tensor x = matmul(stream, name, a, b, t, a.dtype(), bias_N);
    return {x, gelu(stream, x, true).plain};
  }
  const Shape shape{a.dim(t.a ? 1 : 0), b.dim(t.b ? 0 : 1)};
  const GeluResult r{Tensor::empty(stream, shape, a.dtype()),
                     Tensor::empty(stream, shape, a.dtype())};
  auto args = describe(stream.device(), a, b, t, r.y_MN);
  if (bias_N) MT_SHAPE("matmul_gelu", bias_N, {args.N});
  args.bias_N = bias_N;
  args.gelu_input_MN = r.x_MN;
  enqueue(stream, name, args);
  return r;
}

GeluGradients matmul_dgelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                           Transpose t, const Tensor& x_MN) {
  if (!stream.device().is_cuda()) {  // gelu_backward computes both in one pass over memory
    const Tensor y = matmul(stream, name, a, b, t, a.dtype());
    return {gelu_backward(stream, x_MN, y, y, true).plain, y};
  }
  const GeluGradients r{Tensor::empty(stream, x_MN.shape(), a.dtype()),
                        gelu(stream, x_MN, true).plain};
  auto args = describe(stream.device(), a, b, t, r.dx_MN);
  MT_DTYPE("matmul_dgelu", x_MN, a.dtype());
  args.dgelu_of_MN = x_MN;
  enqueue(stream, name, args);
  return r;
}

void weight_gradient_into(Stream& stream, const char* name, const Operand& dy_TO,
                          const Operand& x_TI, const Tensor& dw_OI, bool accumulate,
                          const Tensor& db_O) {
  MT_CHECK(!db_O || !dy_TO.quantized(), "weight_gradient: the sums of quantized columns");
  if (!db_O || !stream.device().is_cuda()) {
    matmul_into(stream, name, dy_TO, x_TI, {.a = true}, dw_OI, accumulate);
    if (db_O) column_sum(stream, dy_TO.data, db_O);
    return;
  }
  MT_DTYPE("weight_gradient", dw_OI, DType::f32);
  auto args = describe(stream.device(), dy_TO, x_TI, {.a = true}, dw_OI);
  MT_SHAPE("weight_gradient", db_O, {args.M});
  MT_DTYPE("weight_gradient", db_O, DType::f32);
  args.accumulate = accumulate;
  args.a_sums_M = db_O;
  enqueue(stream, name, args);
}

}  // namespace mtrain::ops
