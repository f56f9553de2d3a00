// A random permutation of [0, n) that needs no table. A Feistel network, which permutes the
// numbers below a power of 2, computes each element. It is applied again while its result is n or
// more. Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
#pragma once
#include <array>
#include <cstdint>

namespace mtrain::data {

class Permutation {
 public:
  Permutation(uint64_t key, int64_t n);  // the same key gives the same permutation
  int64_t operator()(int64_t i) const;   // 0 <= i < n

 private:
  uint64_t step(uint64_t x) const;

  static constexpr int kRounds = 6;
  std::array<uint64_t, kRounds> keys_;
  int64_t n_;
  int half_bits_;
};

}  // namespace mtrain::data
