#include "kernels/matmul.h"

#include "ops/enqueue.h"
#include "ops/ops.h"

MT_KERNEL(Matmul)

namespace mtrain::ops {

namespace {
kernels::Matmul describe(const Tensor& a, const Tensor& b, Transpose t, const Tensor& c) {
  kernels::Matmul m{.a = a, .b = b, .c_MN = c, .trans_a = t.a, .trans_b = t.b};
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

Tensor matmul(Stream& on, const char* name, const Tensor& a, const Tensor& b, Transpose t,
              DType out, const Tensor& bias_N) {
  Tensor c = Tensor::empty(on, {a.dim(t.a ? 1 : 0), b.dim(t.b ? 0 : 1)}, out);
  matmul_into(on, name, a, b, t, c, false, bias_N);
  return c;
}

void matmul_into(Stream& on, const char* name, const Tensor& a, const Tensor& b, Transpose t,
                 const Tensor& c_MN, bool accumulate, const Tensor& bias_N) {
  if (accumulate) MT_DTYPE("matmul_into", c_MN, DType::f32);
  auto args = describe(a, b, t, c_MN);
  if (bias_N) {
    MT_SHAPE("matmul", bias_N, {args.N});
    MT_FLOAT("matmul", bias_N);
  }
  args.bias_N = bias_N;
  args.accumulate = accumulate;
  std::vector<Access> reads{a, b, bias_N};
  if (accumulate) reads.push_back(c_MN);
  enqueue(on, {.name = name, .reads = std::move(reads), .writes = {c_MN}}, args);
}

}  // namespace mtrain::ops
