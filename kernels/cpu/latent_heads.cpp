#include "kernels/latent_heads.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

template <class Args>
void check_latent(const Args& a, const char* op, const ConstSpan& qkv, const ConstSpan& q,
                  const ConstSpan& kv, const ConstSpan& shared) {
  MT_CHECK(a.T >= 0 && a.A > 0 && a.N > 0 && a.R > 0 && a.V > 0, "{}: T {} A {} N {} R {} V {}", op,
           a.T, a.A, a.N, a.R, a.V);
  const DType dtype = qkv.dtype;
  MT_CHECK(is_float(dtype), "{}: qkv is {}", op, dtype_name(dtype));
  check(op, "qkv", qkv, a.T * a.A * (2 * (a.N + a.R) + a.V), dtype);
  check(op, "q", q, a.T * a.A * (a.N + a.R), dtype);
  check(op, "kv", kv, a.T * a.A * (a.N + a.V), dtype);
  check(op, "the shared elements", shared, a.T * a.R, dtype);
}
void check_latent_forward(const LatentHeadsForward& a) {
  check_latent(a, "latent heads", a.qkv_TN, a.q_TN, a.kv_TN, a.shared_TR);
}
void check_latent_backward(const LatentHeadsBackward& a) {
  check_latent(a, "latent heads backward", a.dqkv_TN, a.dq_TN, a.dkv_TN, a.dshared_TR);
}

}  // namespace

MT_DISPATCH(LatentHeadsForward, check_latent_forward)
MT_DISPATCH(LatentHeadsBackward, check_latent_backward)

}  // namespace mtrain::kernels::cpu
