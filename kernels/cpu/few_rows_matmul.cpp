#include "kernels/cpu/few_rows_matmul.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_few_rows(const FewRowsMatmul& a) {
  const char* op = "matmul of few rows";
  MT_CHECK(a.M > 0 && a.M < kMinPackedRows && a.N > 0 && a.K > 0 && a.k_block > 0,
           "{}: M {} N {} K {}, blocks of {}", op, a.M, a.N, a.K, a.k_block);
  check(op, "a", a.a_MK, a.M * a.K, DType::f32);
  check_holds(op, "b", a.b_NK, a.N * a.K);
  check_holds(op, "c", a.c_MN, a.M * a.N);
  if (a.bias_N) check(op, "bias", a.bias_N, a.N, DType::f32);
}

}  // namespace

MT_DISPATCH(FewRowsMatmul, check_few_rows)

}  // namespace mtrain::kernels::cpu
