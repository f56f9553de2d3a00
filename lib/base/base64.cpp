#include "base/base64.h"

#include <algorithm>
#include <cstdint>

namespace mtrain {

namespace {

constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr int kBitsOfDigit = 6, kDigitsOfGroup = 4, kBytesOfGroup = 3;

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += kBytesOfGroup) {
    uint32_t group = 0;
    const size_t own = std::min<size_t>(kBytesOfGroup, bytes.size() - at);
    for (size_t i = 0; i < kBytesOfGroup; ++i)
      group = group << 8 | (i < own ? uint8_t(bytes[at + i]) : 0u);
    for (size_t i = 0; i < kDigitsOfGroup; ++i)
      text +=
          i <= own ? kBase64Digits[group >> (kBitsOfDigit * (kDigitsOfGroup - 1 - i)) & 63] : '=';
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % kDigitsOfGroup != 0) return std::nullopt;
  std::string bytes;
  for (size_t at = 0; at < text.size(); at += kDigitsOfGroup) {
    uint32_t group = 0;
    size_t padding = 0;
    for (const char c : text.substr(at, kDigitsOfGroup)) {
      const size_t digit = kBase64Digits.find(c);
      if (c == '=')
        ++padding;
      else if (digit == std::string_view::npos || padding > 0)
        return std::nullopt;
      group = group << kBitsOfDigit | uint32_t(c == '=' ? 0 : digit);
    }
    const bool last = at + kDigitsOfGroup == text.size();
    if (padding > 2 || (padding > 0 && !last)) return std::nullopt;
    for (size_t i = 0; i < kBytesOfGroup - padding; ++i) bytes += char(group >> (16 - 8 * i));
  }
  return to_base64(bytes) == text ? std::optional(bytes) : std::nullopt;
}

}  // namespace mtrain
