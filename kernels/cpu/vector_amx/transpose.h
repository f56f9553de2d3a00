// Transposes bf16 in registers, for operands that AMX tiles need transposed.
#pragma once
#include "kernels/cpu/vector_amx/tiles.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// Loads a vector of four pieces of 16 bytes, `step` bytes apart. Then only shuffles within these
// quarters remain: few ports of a CPU can shuffle.
MT_INLINE __m512i quarters(const char* p, int64_t step) {
  const auto quarter = [&](int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * step));
  };
  __m512i x = _mm512_zextsi128_si512(quarter(0));
  x = _mm512_mask_broadcast_i32x4(x, 0x00f0, quarter(1));  // not a shuffle, unlike an insertion
  x = _mm512_mask_broadcast_i32x4(x, 0x0f00, quarter(2));
  return _mm512_mask_broadcast_i32x4(x, 0xf000, quarter(3));
}

// Transposes 32 x 32 elements: rows of `to`, each of 64 bytes, are columns of storage.
MT_INLINE void transpose_step(const bf16* from, int64_t ld, float* to) {
  for (int64_t column = 0; column < kSide; column += 8) {
    __m512i x[8], y[8];
    const char* row = reinterpret_cast<const char*>(from + column);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i, row += 2 * ld) {  // rows i, 8 + i, 16 + i and 24 + i
      asm("" : "+r"(row));  // else GCC keeps 32 addresses, and runs out of registers
      x[i] = quarters(row, 8 * 2 * ld);
    }
    // The 8 x 8 elements of every quarter.
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      y[i] = _mm512_unpacklo_epi16(x[i], x[i + 1]);      // columns 0 .. 3 of two rows
      y[i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 1]);  // columns 4 .. 7
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i &a = y[i / 2 * 4 + i % 2], &b = y[i / 2 * 4 + i % 2 + 2];
      x[2 * i] = _mm512_maskz_unpacklo_epi32(0xffff, a, b);      // two columns of four rows
      x[2 * i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, a, b);  // the next two
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* out = to + (column + 2 * i) * kTile;
      store(out, (Vf)_mm512_maskz_unpacklo_epi64(0xff, x[i], x[i + 4]));
      store(out + kTile, (Vf)_mm512_maskz_unpackhi_epi64(0xff, x[i], x[i + 4]));
    }
  }
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
