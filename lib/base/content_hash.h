// XXH3 with 128 bits (https://github.com/Cyan4973/xxHash): distinguishes the contents of files, at
// the speed of memory. It detects damage, but not deliberate manipulation.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mtrain {

class ContentHash {
 public:
  static constexpr size_t kDigits = 32;  // digits of hex()

  ContentHash();
  ContentHash& add(const void* data, size_t bytes);
  ContentHash& add(std::string_view bytes) { return add(bytes.data(), bytes.size()); }
  ContentHash& add(std::span<const std::byte> bytes) { return add(bytes.data(), bytes.size()); }
  void reset();  // removes all bytes
  // Returns the hash of the bytes added so far, as `xxh128sum` prints it: 32 hexadecimal digits. It
  // depends only on the bytes, not on their division into calls of add().
  std::string hex() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

std::string content_hash(std::string_view bytes);

}  // namespace mtrain
