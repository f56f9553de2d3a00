#include "data/dataset/permutation.h"

#include "base/error.h"
#include "base/rng.h"

namespace mtrain::data {

Permutation::Permutation(uint64_t key, int64_t n) : n_(n), half_bits_(1) {
  MT_CHECK(n > 0, "a permutation of {} elements", n);
  while (half_bits_ < 31 && (int64_t(1) << 2 * half_bits_) < n) ++half_bits_;
  for (int round = 0; round < kRounds; ++round) {
    const auto x = Philox::block(key, uint64_t(round));
    keys_[round] = uint64_t(x[0]) << 32 | x[1];
  }
}

// Applies the network once: a bijection on the numbers of 2 * half_bits_ bits.
uint64_t Permutation::step(uint64_t x) const {
  const uint64_t mask = (uint64_t(1) << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (uint64_t key : keys_) {
    uint64_t h = (right ^ key) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
    h ^= h >> 31;
    const uint64_t next = left ^ (h & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t i) const {
  MT_CHECK(i >= 0 && i < n_, "element {} of {}", i, n_);
  uint64_t x = uint64_t(i);
  do x = step(x);
  while (x >= uint64_t(n_));  // ends at i at the latest; there are at most 4 n numbers
  return int64_t(x);
}

}  // namespace mtrain::data
