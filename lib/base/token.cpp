#include "base/token.h"

#include <sys/random.h>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace mtrain {

Token Token::random() {
  Token t;
  // The kernel returns requests of up to 256 bytes completely, or returns none.
  ssize_t n;
  do n = getrandom(t.bytes.data(), t.bytes.size(), 0);
  while (n < 0 && errno == EINTR);
  if (n != ssize_t(t.bytes.size()))
    throw RunError(fmt::format("no random bytes: {}", std::strerror(errno)));
  return t;
}

std::optional<Token> Token::parse(std::string_view hex) {
  if (hex.size() != 2 * kBytes) return std::nullopt;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  Token t;
  for (size_t i = 0; i < kBytes; ++i) {
    const int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    t.bytes[i] = uint8_t(high << 4 | low);
  }
  return t;
}

std::string Token::hex() const {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace mtrain
