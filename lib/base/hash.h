// FNV-1a with 64 bits: a quick hash of texts and of numbers that ranks compare. It guards against
// mistakes, not against intent.
#pragma once
#include <cstdint>
#include <string_view>

namespace mtrain {

class Fnv1a {
 public:
  // A seed gives hashes of the same texts that differ from those of other seeds.
  explicit constexpr Fnv1a(uint64_t seed = 0) : hash_(0xcbf29ce484222325u ^ seed) {}

  // Takes the value in one step, however large it is.
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
