// The configuration of AMX tiles, which is a state of the thread: without one, tile instructions
// fault. Release it (_tile_release) where the work ends, since a thread with tiles in use is dearer
// to switch away from.
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// All eight tiles as large as they can be: 16 rows of 64 bytes.
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
