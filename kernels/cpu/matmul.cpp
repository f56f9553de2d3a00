#include "kernels/matmul.h"

#include <algorithm>

#include "base/math.h"
#include "base/thread_pool.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/matmul_plan.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/openblas.h"
#include "kernels/cpu/scratch.h"
#include "kernels/elementwise.h"
#include "kernels/matmul_apart.h"

namespace mtrain::kernels::cpu {
namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

void check(const Matmul& m) {
  MT_CHECK(m.M >= 0 && m.N >= 0 && m.K >= 0, "matmul: M {} N {} K {}", m.M, m.N, m.K);
  MT_CHECK((is_float8(m) || (is_float(m.a.dtype) && is_float(m.b.dtype))) && is_float(m.c_MN.dtype),
           "matmul: a {} b {} c {}", dtype_name(m.a.dtype), dtype_name(m.b.dtype),
           dtype_name(m.c_MN.dtype));
  MT_CHECK(m.a.count >= m.M * m.K && m.b.count >= m.K * m.N && m.c_MN.count >= m.M * m.N,
           "matmul: M {} N {} K {} with {}, {} and {} elements", m.M, m.N, m.K, m.a.count,
           m.b.count, m.c_MN.count);
  MT_CHECK(!m.accumulate || m.c_MN.dtype == DType::f32, "matmul: accumulation needs an fp32 C");
  MT_CHECK(!m.bias_N || (!m.accumulate && m.bias_N.count >= m.N && is_float(m.bias_N.dtype)),
           "matmul: bias of {} elements for N {}, accumulate {}", m.bias_N.count, m.N,
           m.accumulate);
}

// Contiguous pieces of [0, n), one per thread, at multiples of `unit`.
template <class F>
void split(int64_t n, int64_t unit, const F& piece) {
  const int64_t threads = current_threads();
  parallel_for(n, std::max(unit, round_up(ceil_div(n, threads), unit)), piece);
}

// The span as fp32: itself, or converted into `scratch`.
ConstSpan as_float(ConstSpan s, int64_t count, Scratch& scratch) {
  if (s.dtype == DType::f32) return s;
  const Span converted{scratch.floats(size_t(count)), count, DType::f32};
  run(Cast{.x = {s.data, count, s.dtype}, .y = converted});
  return converted;
}

const char* at(ConstSpan s, int64_t element) {
  return s.as<char>() + element * dtype_size(s.dtype);
}
char* at(Span s, int64_t element) { return s.as<char>() + element * dtype_size(s.dtype); }

// Both libraries run on one thread each; a thread of the pool takes a range of rows of C, or of
// columns where C is wide. f(row, rows, column, columns)
template <class F>
void split_c(const Matmul& m, const F& f) {
  if (m.M >= m.N)
    split(m.M, 16, [&](int64_t begin, int64_t end) { f(begin, end - begin, 0, m.N); });
  else
    split(m.N, 32, [&](int64_t begin, int64_t end) { f(0, m.M, begin, end - begin); });
}

int64_t a_offset(const Matmul& m, int64_t row) { return m.trans_a ? row : row * m.K; }
int64_t b_offset(const Matmul& m, int64_t column) { return m.trans_b ? column * m.K : column; }

void run_openblas(const Matmul& m) {
  split_c(m, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    float* c = m.c_MN.as<float>() + row * m.N + column;
    if (m.bias_N)
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(m.bias_N.as<float>() + column, columns, c + i * m.N);
    openblas::run({.a = m.a.as<float>() + a_offset(m, row),
                   .b = m.b.as<float>() + b_offset(m, column),
                   .c = c,
                   .M = rows,
                   .N = columns,
                   .K = m.K,
                   .lda = m.trans_a ? m.M : m.K,
                   .ldb = m.trans_b ? m.K : m.N,
                   .ldc = m.N,
                   .trans_a = m.trans_a,
                   .trans_b = m.trans_b,
                   .beta = m.accumulate || m.bias_N ? 1.0f : 0.0f});
  });
}

void run_onednn(const Matmul& m) {
  split_c(m, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    onednn::run({.a = at(m.a, a_offset(m, row)),
                 .b = at(m.b, b_offset(m, column)),
                 .bias = m.bias_N ? m.bias_N.as<float>() + column : nullptr,
                 .c = at(m.c_MN, row * m.N + column),
                 .M = rows,
                 .N = columns,
                 .K = m.K,
                 .lda = m.trans_a ? m.M : m.K,
                 .ldb = m.trans_b ? m.K : m.N,
                 .ldc = m.N,
                 .trans_a = m.trans_a,
                 .trans_b = m.trans_b,
                 .accumulate = m.accumulate,
                 .a_b = m.a.dtype,
                 .c_type = m.c_MN.dtype});
  });
}

// Converts what is bf16 and runs the library on fp32.
template <class F>
void run_as_float(const Matmul& m, const F& library) {
  thread_local Scratch a, b, c;
  Matmul f = m;
  f.a = as_float(m.a, m.M * m.K, a);
  f.b = as_float(m.b, m.K * m.N, b);
  const int64_t count = m.M * m.N;
  if (m.c_MN.dtype == DType::bf16) f.c_MN = {c.floats(size_t(count)), count, DType::f32};
  library(f);
  if (m.c_MN.dtype == DType::bf16)
    run(Cast{.x = {f.c_MN.data, count, DType::f32}, .y = {m.c_MN.data, count, DType::bf16}});
}

// An 8-bit operand as the fp32 numbers that it stands for, times `factor`.
ConstSpan widened(ConstSpan s, int64_t count, float factor, Scratch& scratch) {
  const Span wide{scratch.floats(size_t(count)), count, DType::f32};
  with_float8(s.dtype, [&]<class T>() {
    parallel_for(count, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) wide.as<float>()[i] = float(s.as<T>()[i]) * factor;
    });
  });
  return wide;
}

// As the reference of a GPU's: with exact operands, and the scales in one of them.
void run_8_bit(const Matmul& m) {
  MT_CHECK(float8_fits(m), "matmul: {} and {}, N {} K {}, transposed {} {}, scales {} {}",
           dtype_name(m.a.dtype), dtype_name(m.b.dtype), m.N, m.K, m.trans_a, m.trans_b,
           m.a_inverse.count, m.b_inverse.count);
  thread_local Scratch a, b;
  Matmul wide = m;
  const float scale = *m.a_inverse.as<float>() * *m.b_inverse.as<float>();
  wide.a = widened(m.a, m.M * m.K, scale, a);
  wide.b = widened(m.b, m.K * m.N, 1, b);
  run(wide);
}

// K = 0: C is the bias, or zero.
void run_empty_sum(const Matmul& m) {
  if (m.accumulate) return;
  run(Fill{.y = {m.c_MN.data, m.M * m.N, m.c_MN.dtype}});
  if (!m.bias_N) return;
  for (int64_t row = 0; row < m.M; ++row)
    run(Cast{.x = {m.bias_N.data, m.N, DType::f32},
             .y = {at(m.c_MN, row * m.N), m.N, m.c_MN.dtype}});
}

}  // namespace

std::vector<MatmulWay> ways_of(const Matmul& m) {
  std::vector<MatmulWay> ways{MatmulWay::own, MatmulWay::onednn};
  if (openblas::available()) ways.push_back(MatmulWay::openblas);
  if (m.a.dtype == DType::bf16 && m.b.dtype == DType::bf16) {
    if (onednn::has_bf16()) ways.push_back(MatmulWay::onednn_bf16);
    if (isa() == Isa::avx512 && gemm_bf16_supported()) ways.push_back(MatmulWay::own_bf16);
    if (isa() == Isa::avx512 && gemm_amx_supported()) ways.push_back(MatmulWay::own_amx);
  }
  return ways;
}

void run(const Matmul& m, MatmulWay way) {
  check(m);
  if (m.M == 0 || m.N == 0) return;
  Matmul f = m;
  thread_local Scratch bias;
  if (m.bias_N) f.bias_N = as_float(m.bias_N, m.N, bias);
  if (m.K == 0) return run_empty_sum(f);
  switch (way) {
    case MatmulWay::own: return gemm(f, isa());
    case MatmulWay::openblas: return run_as_float(f, run_openblas);
    case MatmulWay::onednn: return run_as_float(f, run_onednn);
    case MatmulWay::onednn_bf16: return run_onednn(f);
    case MatmulWay::own_bf16: return gemm_bf16(f);
    case MatmulWay::own_amx: return gemm_amx(f);
  }
}

void run(const Matmul& m) {
  check_epilogue(m);
  if (has_epilogue(m)) return run_apart(m, [](const auto& args) { run(args); });
  if (!is_float8(m)) return run(m, matmul_plan::choose(m));
  check(m);
  if (m.M > 0 && m.N > 0) run_8_bit(m);
}

}  // namespace mtrain::kernels::cpu
