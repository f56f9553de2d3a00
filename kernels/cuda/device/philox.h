// base/rng.h's Philox on the device.
#pragma once
#include "kernels/cuda/device/platform.h"

namespace mtrain::kernels::cuda {

struct Words {
  uint32_t x[4];
};

__device__ __forceinline__ Words philox(uint64_t key, uint64_t counter) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  Words w{{uint32_t(counter), uint32_t(counter >> 32), 0, 0}};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t a_high = __umulhi(0xD2511F53u, w.x[0]), a = 0xD2511F53u * w.x[0];
    const uint32_t b_high = __umulhi(0xCD9E8D57u, w.x[2]), b = 0xCD9E8D57u * w.x[2];
    w = {{b_high ^ w.x[1] ^ k0, b, a_high ^ w.x[3] ^ k1, a}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return w;
}

}  // namespace mtrain::kernels::cuda
