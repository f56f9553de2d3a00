// AMX tiles: their sizes and their configuration. The configuration is part of a thread's state:
// without it, tile instructions fault. The thread releases it (_tile_release) when its work ends,
// since a context switch costs more while tiles are in use.
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

constexpr int kTile = 16;             // rows of a tile, each of 64 bytes
constexpr int64_t kStep = 32;         // k of one tile of A
constexpr int64_t kSide = 2 * kTile;  // results are computed in squares of 2 x 2 tiles

// GCC does not know that the tile intrinsics read and write memory.
MT_INLINE void order_memory() { asm volatile("" ::: "memory"); }

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
