#include "kernels/matmul.h"

#include "ops/enqueue.h"
#include "ops/ops.h"

MT_KERNEL(Matmul)

namespace mtrain::ops {

namespace {
kernels::Matmul describe(const Device& device, const Tensor& a, const Tensor& b, Transpose t,
                         const Tensor& c) {
  kernels::Matmul m{
      .a = a, .b = b, .c_MN = c, .trans_a = t.a, .trans_b = t.b, .bf16 = bf16_of(device)};
  MT_CHECK(a.shape().rank() == 2 && b.shape().rank() == 2, "matmul of {} and {}", a.shape().str(),
           b.shape().str());
  m.M = a.dim(t.a ? 1 : 0);
  m.K = a.dim(t.a ? 0 : 1);
  m.N = b.dim(t.b ? 0 : 1);
  MT_CHECK(b.dim(t.b ? 1 : 0) == m.K, "matmul: a {}{} and b {}{} do not share K", a.shape().str(),
           t.a ? "^T" : "", b.shape().str(), t.b ? "^T" : "");
  MT_SHAPE("matmul", c, {m.M, m.N});
  MT_FLOAT("matmul", a);
  MT_FLOAT("matmul", b);
  MT_FLOAT("matmul", c);
  return m;
}
}  // namespace

Tensor matmul(Stream& stream, const char* name, const Tensor& a, const Tensor& b, Transpose t,
              DType out, const Tensor& bias_N) {
  Tensor c = Tensor::empty(stream, {a.dim(t.a ? 1 : 0), b.dim(t.b ? 0 : 1)}, out);
  matmul_into(stream, name, a, b, t, c, false, bias_N);
  return c;
}

void matmul_into(Stream& stream, const char* name, const Tensor& a, const Tensor& b, Transpose t,
                 const Tensor& c_MN, bool accumulate, const Tensor& bias_N) {
  if (accumulate) MT_DTYPE("matmul_into", c_MN, DType::f32);
  auto args = describe(stream.device(), a, b, t, c_MN);
  if (bias_N) {
    MT_SHAPE("matmul", bias_N, {args.N});
    MT_FLOAT("matmul", bias_N);
  }
  args.bias_N = bias_N;
  args.accumulate = accumulate;
  std::vector<device::Access> reads{a, b, bias_N};
  if (accumulate) reads.push_back(c_MN);
  enqueue(stream, {.name = name, .reads = std::move(reads), .writes = {c_MN}}, args);
}

GeluResult matmul_gelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                       Transpose t, const Tensor& bias_N) {
  if (!stream.device().is_cuda()) {
    const Tensor x = matmul(stream, name, a, b, t, a.dtype(), bias_N);
    return {x, gelu(stream, x, true)};
  }
  const Shape shape{a.dim(t.a ? 1 : 0), b.dim(t.b ? 0 : 1)};
  const GeluResult r{Tensor::empty(stream, shape, a.dtype()),
                     Tensor::empty(stream, shape, a.dtype())};
  auto args = describe(stream.device(), a, b, t, r.y_MN);
  if (bias_N) MT_SHAPE("matmul_gelu", bias_N, {args.N});
  args.bias_N = bias_N;
  args.gelu_input_MN = r.x_MN;
  enqueue(stream, {.name = name, .reads = {a, b, bias_N}, .writes = {r.x_MN, r.y_MN}}, args);
  return r;
}

GeluGradients matmul_dgelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                           Transpose t, const Tensor& x_MN) {
  if (!stream.device().is_cuda()) {  // gelu_backward computes both in one pass over memory
    const Tensor y = matmul(stream, name, a, b, t, a.dtype());
    return {gelu_backward(stream, x_MN, y, y, true), y};
  }
  const GeluGradients r{Tensor::empty(stream, x_MN.shape(), a.dtype()), gelu(stream, x_MN, true)};
  auto args = describe(stream.device(), a, b, t, r.dx_MN);
  MT_DTYPE("matmul_dgelu", x_MN, a.dtype());
  args.dgelu_of_MN = x_MN;
  enqueue(stream, {.name = name, .reads = {a, b, x_MN}, .writes = {r.dx_MN}}, args);
  return r;
}

void weight_gradient_into(Stream& stream, const char* name, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, bool accumulate, const Tensor& db_O) {
  if (!db_O || !stream.device().is_cuda()) {
    matmul_into(stream, name, dy_TO, x_TI, {.a = true}, dw_OI, accumulate);
    if (db_O) column_sum(stream, dy_TO, db_O);
    return;
  }
  MT_DTYPE("weight_gradient", dw_OI, DType::f32);
  auto args = describe(stream.device(), dy_TO, x_TI, {.a = true}, dw_OI);
  MT_SHAPE("weight_gradient", db_O, {args.M});
  MT_DTYPE("weight_gradient", db_O, DType::f32);
  args.accumulate = accumulate;
  args.a_sums_M = db_O;
  std::vector<device::Access> reads{dy_TO, x_TI, db_O};
  if (accumulate) reads.push_back(dw_OI);
  enqueue(stream, {.name = name, .reads = std::move(reads), .writes = {dw_OI, db_O}}, args);
}

}  // namespace mtrain::ops
