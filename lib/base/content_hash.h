// XXH3 with 128 bits (https://github.com/Cyan4973/xxHash): tells the contents of files apart, at
// the speed of memory. Any damage changes it; it is no protection against intent.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mtrain {

class ContentHash {
 public:
  static constexpr size_t kDigits = 32;  // of hex()

  ContentHash();
  ContentHash& add(const void* data, size_t bytes);
  ContentHash& add(std::string_view bytes) { return add(bytes.data(), bytes.size()); }
  ContentHash& add(std::span<const std::byte> bytes) { return add(bytes.data(), bytes.size()); }
  void reset();  // begins with no bytes
  // Returns the hash of what was added so far, as `xxh128sum` prints it: 32 hexadecimal digits. It
  // depends on the bytes alone, not on how add() received them.
  std::string hex() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

std::string content_hash(std::string_view bytes);

}  // namespace mtrain
