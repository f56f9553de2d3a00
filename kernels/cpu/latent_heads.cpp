#include "kernels/latent_heads.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

template <class Args>
void check_latent(const Args& a, const char* op, const ConstSpan& qkv, const ConstSpan& q,
                  const ConstSpan& kv, const ConstSpan& shared) {
  const int64_t of_q = q ? a.N + a.R : 0;
  MT_CHECK(a.T >= 0 && a.A > 0 && a.N > 0 && a.R > 0 && a.V > 0, "{}: T {} A {} N {} R {} V {}", op,
           a.T, a.A, a.N, a.R, a.V);
  const DType dtype = qkv.dtype;
  MT_CHECK(is_float(dtype), "{}: qkv is {}", op, dtype_name(dtype));
  check(op, "qkv", qkv, a.T * a.A * (of_q + a.N + a.R + a.V), dtype);
  if (q) check(op, "q", q, a.T * a.A * of_q, dtype);
  check(op, "kv", kv, a.T * a.A * (a.N + a.V), dtype);
  check(op, "the shared elements", shared, a.T * a.R, dtype);
}
void check_latent_forward(const LatentHeadsForward& a) {
  check_latent(a, "latent heads", a.qkv_TN, a.q_TN, a.kv_TN, a.shared_TR);
}
void check_latent_backward(const LatentHeadsBackward& a) {
  check_latent(a, "latent heads backward", a.dqkv_TN, a.dq_TN, a.dkv_TN, a.dshared_TR);
}
void check_latent_queries(const LatentQueries& a) {
  const char* op = "latent queries";
  MT_CHECK(a.T >= 0 && a.A > 0 && a.N > 0 && a.R >= 0 && a.V > 0 && a.C > 0,
           "{}: T {} A {} N {} R {} V {} C {}", op, a.T, a.A, a.N, a.R, a.V, a.C);
  const DType dtype = a.q_TN.dtype;
  MT_CHECK(is_float(dtype), "{}: q is {}", op, dtype_name(dtype));
  check(op, "q", a.q_TN, a.T * a.A * (a.N + a.R), dtype);
  check(op, "the weight", a.weight_NC, a.A * (a.N + a.V) * a.C, dtype);
  check(op, "out", a.out_TN, a.T * a.A * (a.C + a.R), dtype);
}
void check_latent_values(const LatentValues& a) {
  const char* op = "latent values";
  MT_CHECK(a.T >= 0 && a.A > 0 && a.N > 0 && a.V > 0 && a.C > 0, "{}: T {} A {} N {} V {} C {}", op,
           a.T, a.A, a.N, a.V, a.C);
  const DType dtype = a.x_TN.dtype;
  MT_CHECK(is_float(dtype), "{}: x is {}", op, dtype_name(dtype));
  check(op, "x", a.x_TN, a.T * a.A * a.C, dtype);
  check(op, "the weight", a.weight_NC, a.A * (a.N + a.V) * a.C, dtype);
  check(op, "out", a.out_TN, a.T * a.A * a.V, dtype);
}

}  // namespace

MT_DISPATCH(LatentHeadsForward, check_latent_forward)
MT_DISPATCH(LatentHeadsBackward, check_latent_backward)
MT_DISPATCH(LatentQueries, check_latent_queries)
MT_DISPATCH(LatentValues, check_latent_values)

}  // namespace mtrain::kernels::cpu
