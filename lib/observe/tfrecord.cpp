#include "observe/tfrecord.h"

#include <array>

namespace mtrain::observe {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // with its bits reversed

// The checksum of each byte.
constexpr std::array<uint32_t, 256> kOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ kPolynomial : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

// The lowest byte comes first.
template <class T>
void append(std::string& out, T number) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) out += char(number >> 8 * byte & 0xff);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = kOfByte[(crc ^ uint8_t(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

std::string tfrecord(std::string_view data) {
  std::string out;
  append(out, uint64_t(data.size()));
  append(out, masked_crc32c(out));
  out += data;
  append(out, masked_crc32c(data));
  return out;
}

}  // namespace mtrain::observe
