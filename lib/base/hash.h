// FNV-1a with 64 bits: a quick hash of texts and of numbers that ranks compare. It detects
// mistakes, but not deliberate manipulation.
#pragma once
#include <cstdint>
#include <string_view>

namespace mtrain {

class Fnv1a {
 public:
  // Different seeds give different hashes of the same text.
  explicit constexpr Fnv1a(uint64_t seed = 0) : hash_(0xcbf29ce484222325u ^ seed) {}

  // Hashes the value as one unit, not byte by byte as FNV-1a does with text.
  constexpr Fnv1a& add(uint64_t value) {
    hash_ = (hash_ ^ value) * 0x100000001b3u;
    return *this;
  }
  constexpr Fnv1a& add(std::string_view bytes) {
    for (const char c : bytes) add(uint64_t(uint8_t(c)));
    return *this;
  }
  constexpr uint64_t value() const { return hash_; }

 private:
  uint64_t hash_;
};

}  // namespace mtrain
