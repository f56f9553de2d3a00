// The rate of AMX tile multiplications without loads or stores.
#include <immintrin.h>

#include "kernels/cpu/vector_amx/tiles.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// Executes steps * 4 tile multiplications and returns their number of operations. The sums of four
// multiplications are independent: the next one need not wait.
double tile_flops(int64_t steps);
double tile_flops(int64_t steps) {
  configure_tiles();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4.0 * double(steps) * (2 * 16 * 16 * 32);
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
