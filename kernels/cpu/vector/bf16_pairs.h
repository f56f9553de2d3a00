// Packed words of two bf16 elements of consecutive k, the lower k in the lower half, in the form
// that AVX512_BF16's dot product and AMX tiles multiply. kernels/cpu/vector/gemm_pack.h defines
// what a class of words provides.
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

struct Bf16Pairs {
  static constexpr int kDepth = 2;

  template <class T>
  struct Packed {
    MT_INLINE Vf along(const T* p) {
      Vf v;
      __builtin_memcpy(&v, p, sizeof v);
      return v;
    }
    MT_INLINE Vf along(const T* p, int64_t count) {
      return (Vf)_mm512_maskz_loadu_epi16((__mmask32(1) << count) - 1, p);
    }
    // Puts the lower k into the lower half, in the order of memory along k.
    template <class Lanes>
    MT_INLINE Vf across(const T* p, int64_t ld, bool deep, Lanes lanes) {
      const Vu low = (Vu)load(p, lanes) >> 16;
      return deep ? (Vf)((Vu)load(p + ld, lanes) | low) : (Vf)low;
    }
  };
};

}  // namespace
}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
