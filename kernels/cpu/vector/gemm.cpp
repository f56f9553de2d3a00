// kernels/cpu/gemm.h in fp32: a packed word is one element, converted to fp32 if it was bf16 or
// fp16.
#include "kernels/cpu/vector/gemm_kernels.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

struct Fp32Words {
  static constexpr int kDepth = 1;
  static constexpr int kWordMultiple = 1;
  static constexpr int64_t kMaxWords = 512;

  template <class T>
  struct Packed {
    MT_INLINE Vf along(const T* p) { return load(p); }
    MT_INLINE Vf along(const T* p, int64_t count) { return load(p, Part{int(count)}); }
    template <class Lanes>
    MT_INLINE Vf across(const T* p, int64_t, bool, Lanes lanes) {
      return load(p, lanes);
    }
  };

  template <int ROWS, int VECTORS, int64_t ROW>
  MT_INLINE void multiply_add(const float* a, const float* b, Vf (&sum)[ROWS][VECTORS]) {
#if defined(__AVX2__)
    // In an unrolled loop GCC 12 moves sums between registers and into memory. With inline assembly
    // each sum stays in its register.
    Vf line[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) line[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const Vf x = splat(a[i * ROW]);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) {
        Vf one = sum[i][v];
        asm("vfmadd231ps %2, %1, %0" : "+v"(one) : "v"(x), "v"(line[v]));
        sum[i][v] = one;
      }
    }
#else
    MTRAIN_ISA::multiply_add<ROWS, VECTORS, ROW, 0>(a, b, 1, sum);
#endif
  }
};

void pack_a(const GemmKernels::PackA& p) {
  with_float(p.dtype, [&]<class T>() { pack_a_of<Fp32Words, T>(p); });
}
void pack_b(const GemmKernels::PackB& p) {
  with_float(p.dtype, [&]<class T>() { pack_b_of<Fp32Words, T>(p); });
}

}  // namespace

extern const GemmKernels kGemm;
const GemmKernels kGemm = gemm_kernels<Fp32Words>(pack_a, pack_b);

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
