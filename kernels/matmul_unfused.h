// Runs a matmul and its epilogue as separate kernels, one after the other: on the CPU, and on a GPU
// if cuBLASLt lacks the epilogue.
#pragma once
#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/matmul.h"
#include "kernels/reduce.h"

namespace mtrain::kernels {

// Throws BugError if the epilogue does not fit the matmul.
inline void check_epilogue(const Matmul& m) {
  const int64_t count = m.M * m.N;
  const auto fits = [&](const ConstSpan& s) {
    return !s || (s.count >= count && s.dtype == m.c_MN.dtype && !m.accumulate);
  };
  MT_CHECK(int(bool(m.gelu_input_MN)) + int(bool(m.dgelu_of_MN)) + int(bool(m.a_sums_M)) <= 1,
           "matmul: more than one epilogue (gelu, gelu's gradient, sums of A)");
  MT_CHECK(!has_epilogue(m) || !is_float8(m), "matmul: an epilogue for operands of {}",
           dtype_name(m.a.dtype));
  MT_CHECK(fits(m.gelu_input_MN) && fits(m.dgelu_of_MN),
           "matmul: gelu_input has {} elements and dgelu_of {}, for M {} N {}",
           m.gelu_input_MN.count, m.dgelu_of_MN.count, m.M, m.N);
  MT_CHECK(!m.a_sums_M || (m.a_sums_M.count >= m.M && m.a_sums_M.dtype == DType::f32 && m.trans_a),
           "matmul: a_sums has {} elements of {} for M {}, and A is {}transposed", m.a_sums_M.count,
           dtype_name(m.a_sums_M.dtype), m.M, m.trans_a ? "" : "not ");
}

// Calls run(args) with the argument struct of each kernel, in order.
template <class Run>
void run_unfused(const Matmul& m, const Run& run) {
  Matmul plain = m;
  plain.gelu_input_MN = {}, plain.dgelu_of_MN = {}, plain.a_sums_M = {};
  if (m.gelu_input_MN) plain.c_MN = m.gelu_input_MN;
  run(plain);
  const int64_t count = m.M * m.N;
  if (m.gelu_input_MN) run(GeluForward{.x = m.gelu_input_MN, .y = m.c_MN, .count = count});
  if (m.dgelu_of_MN)
    run(GeluBackward{.x = m.dgelu_of_MN, .dy = m.c_MN, .dx = m.c_MN, .y = {}, .count = count});
  if (m.a_sums_M) run(ColumnSum{.x_TN = m.a, .out_N = m.a_sums_M, .T = m.K, .N = m.M});
}

}  // namespace mtrain::kernels
