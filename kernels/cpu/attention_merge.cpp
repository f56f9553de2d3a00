#include "kernels/attention_merge.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_merge(const AttentionMerge& a) {
  const char* op = "attention merge";
  MT_CHECK(a.B >= 0 && a.S >= 0 && a.A > 0 && a.D > 0 && a.lse_stride >= a.S,
           "{}: B {} S {} A {} D {}, lse stride {}", op, a.B, a.S, a.A, a.D, a.lse_stride);
  check_holds(op, "block_out", a.block_out_TN, a.B * a.S * a.A * a.D);
  check(op, "block_lse", a.block_lse, a.B * a.A * a.S, DType::f32);
  check(op, "out", a.out_TN, a.B * a.S * a.A * a.D, DType::f32);
  const int64_t rows = a.B * a.S;
  check(op, "lse", a.lse, rows > 0 ? (a.B * a.A - 1) * a.lse_stride + a.S : 0, DType::f32);
}

}  // namespace

MT_DISPATCH(AttentionMerge, check_merge)

}  // namespace mtrain::kernels::cpu
