#include <catch2/catch.hpp>

#include "base/content_hash.h"

namespace base_content_hash_test {

using namespace mtrain;

TEST_CASE("contents hash to the values that xxh128sum prints") {
  CHECK(content_hash("") == "99aa06d3014798d86001c324468d497f");
  CHECK(content_hash("a") == "a96faf705af16834e6c632b61e964e1f");
  CHECK(content_hash("abc") == "06b05ab6733a618578af5f94892f3950");
}

TEST_CASE("a hash depends on the bytes, not on the pieces in which they came") {
  std::string bytes(100'003, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = char(i * 7 + i / 251);
  for (const size_t piece : {1, 63, 240, 4096, 65536}) {
    ContentHash hash;
    for (size_t at = 0; at < bytes.size(); at += piece)
      hash.add(std::string_view(bytes).substr(at, piece));
    CHECK(hash.hex() == content_hash(bytes));
    CHECK(hash.hex().size() == ContentHash::kDigits);
  }
  std::string flipped = bytes;
  flipped[50'000] = char(flipped[50'000] ^ 1);
  CHECK(content_hash(flipped) != content_hash(bytes));
}

}  // namespace base_content_hash_test
