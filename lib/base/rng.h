// Counter-based random numbers: a value is a pure function of (key, index). Every layout therefore
// draws the same numbers. The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011).
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace mtrain {

struct Philox {
  static std::array<uint32_t, 4> block(uint64_t key, uint64_t counter) {
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    std::array<uint32_t, 4> x{uint32_t(counter), uint32_t(counter >> 32), 0, 0};
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
      x = {uint32_t(b >> 32) ^ x[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ x[3] ^ k1, uint32_t(a)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return x;
  }
};

// Returns the key of the random numbers of `name`, given `seed`.
uint64_t rng_key(uint64_t seed, std::string_view name);

// Sets out[i] to the normal random number (mean 0, standard deviation `std`) with the index first +
// i of `key`.
void fill_normal(uint64_t key, int64_t first, int64_t count, float std, float* out);

// Returns a uniform integer in [0, n), a function of (key, index) only.
uint64_t uniform_below(uint64_t key, uint64_t index, uint64_t n);

}  // namespace mtrain
