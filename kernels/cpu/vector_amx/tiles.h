// The configuration of AMX tiles, which is part of a thread's state: without it, tile instructions
// fault. The thread releases it (_tile_release) when its work ends, since a context switch costs
// more while tiles are in use.
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// Configures all eight tiles at their largest size: 16 rows of 64 bytes.
MT_INLINE void configure_tiles() {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  asm volatile("" ::: "memory");  // GCC does not know that the next instruction reads memory
  _tile_loadconfig(&config);
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
