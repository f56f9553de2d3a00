#include "kernels/matmul.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/cpu/few_rows_matmul.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/widened.h"
#include "kernels/elementwise.h"
#include "kernels/matmul_unfused.h"

namespace mtrain::kernels::cpu {
namespace {

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

// Returns the span as fp32: the span itself, or a converted copy in `scratch`.
ConstSpan as_float(ConstSpan s, int64_t count, Scratch& scratch) {
  if (s.dtype == DType::f32) return s;
  const Span converted{scratch.floats(size_t(count)), count, DType::f32};
  run(Cast{.x = {s.data, count, s.dtype}, .y = converted});
  return converted;
}

char* at(Span s, int64_t element) { return s.as<char>() + element * dtype_size(s.dtype); }

// Converts an 8-bit operand (rows, K) to fp32, times the inverses of its blocks.
ConstSpan widened_blocks(ConstSpan s, int64_t rows, int64_t K, ScaleBlocks blocks,
                         ConstSpan inverse, Scratch& scratch) {
  const Span wide{scratch.floats(size_t(rows * K)), rows * K, DType::f32};
  const int64_t length = block_length(blocks);
  with_float8(s.dtype, [&]<class T>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t block = 0; block * length < K; ++block) {
          const int64_t at = block_scale_index(blocks, rows, K, row, block);
          const float factor = inverse.dtype == DType::u8
                                   ? std::ldexp(1.0f, int(inverse.as<uint8_t>()[at]) - 127)
                                   : inverse.as<float>()[at];
          for (int64_t k = block * length; k < (block + 1) * length; ++k)
            wide.as<float>()[row * K + k] = float(s.as<T>()[row * K + k]) * factor;
        }
    });
  });
  return wide;
}

// The reference for a GPU's 8-bit GEMM: operands are converted exactly. With one scale each, one
// operand is multiplied by both scales; with scales of blocks, each operand by its own.
void run_8_bit(const Matmul& m) {
  MT_CHECK(float8_fits(m), "matmul: {} and {}, N {} K {}, transposed {} {}, scales {} {}",
           dtype_name(m.a.dtype), dtype_name(m.b.dtype), m.N, m.K, m.trans_a, m.trans_b,
           m.a_inverse.count, m.b_inverse.count);
  thread_local Scratch a, b;
  Matmul wide = m;
  if (m.a_blocks != ScaleBlocks::none) {
    wide.a = widened_blocks(m.a, m.M, m.K, m.a_blocks, m.a_inverse, a);
    wide.b = widened_blocks(m.b, m.N, m.K, m.b_blocks, m.b_inverse, b);
    return run(wide);
  }
  const float scale = *m.a_inverse.as<float>() * *m.b_inverse.as<float>();
  wide.a = widened(m.a, m.M * m.K, scale, a);
  wide.b = widened(m.b, m.K * m.N, 1, b);
  run(wide);
}

void multiply(std::span<const Matmul> list, MatmulBackend backend) {
  switch (backend) {
    case MatmulBackend::native: return gemm(list, isa());
    case MatmulBackend::native_bf16: return gemm_bf16(list);
    case MatmulBackend::native_amx: return gemm_amx(list);
  }
}

bool has_few_rows(const Matmul& m) {
  return m.M < kMinPackedRows && !m.trans_a && m.trans_b && !m.accumulate;
}

void run_few_rows(const Matmul& m) {
  thread_local Scratch a;
  run(FewRowsMatmul{.a_MK = as_float(m.a, m.M * m.K, a),
                    .b_NK = m.b,
                    .bias_N = m.bias_N,
                    .c_MN = m.c_MN,
                    .M = m.M,
                    .N = m.N,
                    .K = m.K,
                    .k_block = gemm_k_block(m.K, isa())});
}

// For K = 0, C is the bias, or zero.
void run_empty_sum(const Matmul& m) {
  if (m.accumulate) return;
  run(Fill{.y = {m.c_MN.data, m.M * m.N, m.c_MN.dtype}});
  if (!m.bias_N) return;
  for (int64_t row = 0; row < m.M; ++row)
    run(Cast{.x = {m.bias_N.data, m.N, DType::f32},
             .y = {at(m.c_MN, row * m.N), m.N, m.c_MN.dtype}});
}

}  // namespace

std::string_view backend_name(MatmulBackend backend) {
  switch (backend) {
    case MatmulBackend::native_bf16: return "native_bf16";
    case MatmulBackend::native_amx: return "native_amx";
    default: return "native";
  }
}

bool supports(Bf16Arithmetic arithmetic) {
  switch (arithmetic) {
    case Bf16Arithmetic::dot_products: return isa() == Isa::avx512 && gemm_bf16_supported();
    case Bf16Arithmetic::tiles:
      return isa() == Isa::avx512 && tiles_allowed() && gemm_amx_supported();
    default: return true;
  }
}

MatmulBackend choose_backend(const Matmul& m) {
  if (m.a.dtype != DType::bf16 || m.b.dtype != DType::bf16) return MatmulBackend::native;
  MT_CHECK(supports(m.bf16), "this CPU cannot multiply bf16 by {}", bf16_arithmetic_name(m.bf16));
  switch (m.bf16) {
    case Bf16Arithmetic::dot_products: return MatmulBackend::native_bf16;
    case Bf16Arithmetic::tiles: return MatmulBackend::native_amx;
    default: return MatmulBackend::native;
  }
}

std::vector<MatmulBackend> available_backends(const Matmul& m) {
  std::vector<MatmulBackend> backends{MatmulBackend::native};
  if (m.a.dtype != DType::bf16 || m.b.dtype != DType::bf16) return backends;
  if (supports(Bf16Arithmetic::dot_products)) backends.push_back(MatmulBackend::native_bf16);
  if (supports(Bf16Arithmetic::tiles)) backends.push_back(MatmulBackend::native_amx);
  return backends;
}

void run(const Matmul& m, MatmulBackend backend) {
  check(m);
  if (m.M == 0 || m.N == 0) return;
  Matmul f = m;
  thread_local Scratch bias;
  if (m.bias_N) f.bias_N = as_float(m.bias_N, m.N, bias);
  if (m.K == 0) return run_empty_sum(f);
  if (backend == MatmulBackend::native && has_few_rows(f)) return run_few_rows(f);
  multiply({&f, 1}, backend);
}

void run(std::span<const Matmul> list) {
  if (list.empty()) return;
  for (const Matmul& m : list) {
    check(m);
    MT_CHECK(m.M > 0 && m.N > 0 && m.K > 0 && !m.bias_N && !has_epilogue(m) && !is_float8(m),
             "matmuls: M {} N {} K {}, or a bias, an epilogue or 8-bit operands", m.M, m.N, m.K);
    MT_CHECK(choose_backend(m) == choose_backend(list[0]),
             "matmuls: the GEMMs of a list need the same backend");
  }
  multiply(list, choose_backend(list[0]));
}

void run(const Matmul& m) {
  check_epilogue(m);
  if (has_epilogue(m)) return run_unfused(m, [](const auto& args) { run(args); });
  if (!is_float8(m)) return run(m, choose_backend(m));
  check(m);
  if (m.M > 0 && m.N > 0) run_8_bit(m);
}

}  // namespace mtrain::kernels::cpu
