// kernels/cpu/gemm.h on bf16 operands without conversion: a packed word is two elements of
// consecutive k, which one instruction of AVX512_BF16 multiplies and adds. Compiled once, for CPUs
// that have it.
#include "kernels/cpu/vector/bf16_pairs.h"
#include "kernels/cpu/vector/gemm_kernels.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

struct DotWords : Bf16Pairs {
  static constexpr int kWordMultiple = 1;
  // A panel of B does not fit into the first-level cache: tiles read it so slowly that the
  // second-level cache keeps up, and fewer blocks of k mean fewer passes over C.
  static constexpr int64_t kMaxWords = 768;

  template <int ROWS, int VECTORS, int64_t ROW>
  MT_INLINE void multiply_add(const float* a, const float* b, Vf (&sum)[ROWS][VECTORS]) {
    __m512bh line[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) line[v] = (__m512bh)load(b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const __m512bh x = (__m512bh)_mm512_set1_ps(a[i * ROW]);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v)
        sum[i][v] = (Vf)_mm512_dpbf16_ps((__m512)sum[i][v], x, line[v]);
    }
  }
};

}  // namespace

extern const GemmKernels kGemm;
const GemmKernels kGemm =
    gemm_kernels<DotWords>(pack_a_of<DotWords, bf16>, pack_b_of<DotWords, bf16>);

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
