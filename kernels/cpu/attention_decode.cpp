#include "kernels/attention_decode.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

constexpr const char* kOp = "attention decode";

void check_rows(const char* name, const ConstSpan& data, int64_t stride, int64_t rows,
                int64_t width, DType dtype) {
  MT_CHECK(stride >= width, "{}: {} has {} elements between rows of {}", kOp, name, stride, width);
  check(kOp, name, data, rows > 0 ? (rows - 1) * stride + width : 0, dtype);
}

void check_decode(const AttentionDecode& a) {
  MT_CHECK(a.T >= 0 && a.rows >= 0 && a.A > 0 && a.G > 0 && a.D > 0 && a.Dv >= 0 &&
               a.A % a.G == 0 && a.window >= 0,
           "{}: T {} rows {} A {} G {} D {} Dv {} window {}", kOp, a.T, a.rows, a.A, a.G, a.D, a.Dv,
           a.window);
  MT_CHECK(a.cap >= 0, "{}: cap {}", kOp, a.cap);
  const DType dtype = a.q.data.dtype;
  MT_CHECK(is_float(dtype), "{}: q is {}", kOp, dtype_name(dtype));
  check_rows("q", a.q.data, a.q.token_stride, a.T, a.A * a.D, dtype);
  check_rows("k", a.k.data, a.k.token_stride, a.rows, a.G * a.D, dtype);
  check_rows("v", a.v.data, a.v.token_stride, a.rows, a.G * a.value_dim(), dtype);
  check_rows("out", a.out.data, a.out.token_stride, a.T, a.A * a.value_dim(), dtype);
  check_indices(kOp, "start", a.start_T, a.T, a.rows);
  check_indices(kOp, "end", a.end_T, a.T, a.rows + 1);
  for (int64_t t = 0; t < a.T; ++t) {
    const int32_t start = a.start_T.as<int32_t>()[t], end = a.end_T.as<int32_t>()[t];
    MT_CHECK(start < end, "{}: query {} has the rows [{}, {})", kOp, t, start, end);
  }
}

}  // namespace

MT_DISPATCH(AttentionDecode, check_decode)

}  // namespace mtrain::kernels::cpu
