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
    const uint64_t a = uint64_t(0xD2511F53u) * w.x[0], b = uint64_t(0xCD9E8D57u) * w.x[2];
    w = {{uint32_t(b >> 32) ^ w.x[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ w.x[3] ^ k1,
          uint32_t(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return w;
}

}  // namespace mtrain::kernels::cuda
