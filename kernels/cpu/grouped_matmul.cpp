// One list of GEMMs for all experts: threads then do not wait for each other between experts.
#include "kernels/grouped_matmul.h"

#include <vector>

#include "kernels/cpu/check.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/cpu/widened.h"
#include "kernels/elementwise.h"

namespace mtrain::kernels::cpu {
namespace {

// Returns the first row of each expert, and the end of the last one's.
const int32_t* checked_rows(const char* op, const ConstSpan& first_E1, int64_t E, int64_t R) {
  check(op, "first", first_E1, E + 1, DType::i32);
  const auto* first = first_E1.as<int32_t>();
  MT_CHECK(first[0] == 0 && first[E] <= R, "{}: rows from {} to {} of {}", op, first[0], first[E],
           R);
  for (int64_t e = 0; e < E; ++e)
    MT_CHECK(first[e] <= first[e + 1], "{}: expert {} ends before it begins", op, e);
  return first;
}

ConstSpan part(const ConstSpan& s, int64_t begin, int64_t count) {
  return {s.as<char>() + begin * dtype_size(s.dtype), count, s.dtype};
}
Span part(const Span& s, int64_t begin, int64_t count) {
  return {s.as<char>() + begin * dtype_size(s.dtype), count, s.dtype};
}

// Replaces the 8-bit operands by fp32 ones. One of them is multiplied by both factors.
struct Widened {
  Scratch a, b;
  void operands(ConstSpan& of_a, ConstSpan& of_b, const ConstSpan& a_inverse,
                const ConstSpan& b_inverse) {
    check("grouped matmul", "a's inverse", a_inverse, 1, DType::f32);
    check("grouped matmul", "b's inverse", b_inverse, 1, DType::f32);
    of_a = widened(of_a, of_a.count, *a_inverse.as<float>() * *b_inverse.as<float>(), a);
    of_b = widened(of_b, of_b.count, 1, b);
  }
};

}  // namespace

void run(const GroupedMatmul& a) {
  const char* op = "grouped matmul";
  check_holds(op, "a", a.a_RK, a.R * a.K);
  if (is_float8(a)) {
    MT_CHECK(float8_fits(a), "{}: 8-bit operands, N {} K {}", op, a.N, a.K);
    thread_local Widened wide;
    GroupedMatmul m = a;
    wide.operands(m.a_RK, m.b_EKN, a.a_inverse, a.b_inverse);
    return run(m);
  }
  check(op, "b", a.b_EKN, a.E * a.K * a.N, a.a_RK.dtype);
  check_holds(op, "c", a.c_RN, a.R * a.N);
  const auto* first = checked_rows(op, a.first_E1, a.E, a.R);
  std::vector<Matmul> list;
  for (int64_t e = 0; e < a.E; ++e) {
    const int64_t begin = first[e], rows = first[e + 1] - begin;
    if (rows == 0 || a.N == 0) continue;
    list.push_back({.a = part(a.a_RK, begin * a.K, rows * a.K),
                    .b = part(a.b_EKN, e * a.K * a.N, a.K * a.N),
                    .bias_N = {},
                    .c_MN = part(a.c_RN, begin * a.N, rows * a.N),
                    .M = rows,
                    .N = a.N,
                    .K = a.K,
                    .trans_b = a.trans_b,
                    .bf16 = a.bf16});
  }
  run(list);
}

void run(const GroupedWeightGrad& a) {
  const char* op = "grouped weight gradient";
  check_holds(op, "a", a.a_RM, a.R * a.M);
  if (is_float8(a)) {
    MT_CHECK(float8_fits(a), "{}: 8-bit operands, M {} N {}", op, a.M, a.N);
    thread_local Widened wide;
    GroupedWeightGrad m = a;
    wide.operands(m.a_RM, m.b_RN, a.a_inverse, a.b_inverse);
    return run(m);
  }
  check(op, "b", a.b_RN, a.R * a.N, a.a_RM.dtype);
  check(op, "c", a.c_EMN, a.E * a.M * a.N, DType::f32);
  const auto* first = checked_rows(op, a.first_E1, a.E, a.R);
  std::vector<Matmul> list;
  if (a.M == 0 || a.N == 0) return;
  for (int64_t e = 0; e < a.E; ++e) {
    const int64_t begin = first[e], rows = first[e + 1] - begin;
    const Span c = part(a.c_EMN, e * a.M * a.N, a.M * a.N);
    if (rows > 0)
      list.push_back({.a = part(a.a_RM, begin * a.M, rows * a.M),
                      .b = part(a.b_RN, begin * a.N, rows * a.N),
                      .bias_N = {},
                      .c_MN = c,
                      .M = a.M,
                      .N = a.N,
                      .K = rows,
                      .trans_a = true,
                      .accumulate = a.accumulate,
                      .bf16 = a.bf16});
    else if (!a.accumulate)
      run(Fill{.y = c});
  }
  run(list);
}

}  // namespace mtrain::kernels::cpu
