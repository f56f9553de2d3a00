#include "gemm_peers.h"

#include <algorithm>
#include <cstdlib>

#include "base/math.h"
#include "base/thread_pool.h"
#include "kernels/cpu/dispatch.h"
#include "openblas.h"
#ifdef MTRAIN_BENCH_ONEDNN
#include "onednn.h"
#endif

namespace mtrain::bench {
namespace {

using kernels::Matmul;
namespace cpu = kernels::cpu;

int64_t a_offset(const Matmul& m, int64_t row) { return m.trans_a ? row : row * m.K; }
int64_t b_offset(const Matmul& m, int64_t column) { return m.trans_b ? column * m.K : column; }

// Both libraries run on one thread each; a thread of the pool takes a range of rows of C, or of
// columns where C is wide. f(row, rows, column, columns)
template <class F>
void split_c(const Matmul& m, const F& f) {
  const bool rows = m.M >= m.N;
  const int64_t n = rows ? m.M : m.N, unit = rows ? 16 : 32;
  parallel_for(n, std::max(unit, round_up(ceil_div(n, int64_t(current_threads())), unit)),
               [&](int64_t begin, int64_t end) {
                 rows ? f(begin, end - begin, int64_t(0), m.N)
                      : f(int64_t(0), m.M, begin, end - begin);
               });
}

void run_openblas(const Matmul& m) {
  split_c(m, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    openblas::run({.a = m.a.as<float>() + a_offset(m, row),
                   .b = m.b.as<float>() + b_offset(m, column),
                   .c = m.c_MN.as<float>() + row * m.N + column,
                   .M = rows,
                   .N = columns,
                   .K = m.K,
                   .lda = m.trans_a ? m.M : m.K,
                   .ldb = m.trans_b ? m.K : m.N,
                   .ldc = m.N,
                   .trans_a = m.trans_a,
                   .trans_b = m.trans_b,
                   .beta = m.accumulate ? 1.0f : 0.0f});
  });
}

#ifdef MTRAIN_BENCH_ONEDNN
const char* at(ConstSpan s, int64_t element) {
  return s.as<char>() + element * dtype_size(s.dtype);
}

void run_onednn(const Matmul& m) {
  split_c(m, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    onednn::run({.a = at(m.a, a_offset(m, row)),
                 .b = at(m.b, b_offset(m, column)),
                 .bias = nullptr,
                 .c = const_cast<char*>(at(m.c_MN, row * m.N + column)),
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
#endif

// Limits both libraries to the instruction set of MTRAIN_CPU_ISA, by variables that the user has
// not set.
void cap_libraries() {
  const char* allowed = std::getenv("MTRAIN_CPU_ISA");
  if (!allowed || !*allowed) return;
  switch (cpu::isa()) {
    case cpu::Isa::avx512: setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", 0); break;
    case cpu::Isa::avx2:
      setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 0);
      setenv("MTRAIN_OPENBLAS_CORETYPE", "Haswell", 0);
      break;
    default:
      setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 0);
      setenv("MTRAIN_OPENBLAS_CORETYPE", "Nehalem", 0);
  }
}

}  // namespace

std::vector<GemmPeer> gemm_peers(DType dtype) {
  cap_libraries();
  std::vector<GemmPeer> peers;
#ifdef MTRAIN_BENCH_ONEDNN
  if (dtype == DType::f32 || onednn::has_bf16()) peers.push_back({"oneDNN", run_onednn});
#endif
  openblas::load();
  if (dtype == DType::f32 && openblas::available())
    peers.push_back({"OpenBLAS " + openblas::core_name(), run_openblas});
  return peers;
}

}  // namespace mtrain::bench
