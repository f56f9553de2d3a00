#include "data/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace mtrain::data {

size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return uint8_t(text[at + i]); };
  const size_t left = text.size() - at;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const auto tail = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xBF) {
    return i < left && byte(i) >= low && byte(i) <= high;
  };
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
    return tail(1, low, high) && tail(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
    return tail(1, low, high) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

uint32_t decode_utf8(std::string_view text, size_t at, size_t length) {
  const auto tail = [&](size_t i) { return uint32_t(uint8_t(text[at + i])) & 0x3F; };
  const uint32_t lead = uint8_t(text[at]);
  switch (length) {
    case 1: return lead;
    case 2: return (lead & 0x1F) << 6 | tail(1);
    case 3: return (lead & 0x0F) << 12 | tail(1) << 6 | tail(2);
    default: return (lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
  }
}

size_t last_character(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(4, text.size()); ++n)
    if (utf8_length(text, text.size() - n) == n) return n;
  return 0;
}

size_t utf8_run_end(std::string_view text, size_t at, bool valid) {
  while (at < text.size()) {
    while (valid && at + 8 <= text.size()) {  // ASCII, eight at a time
      uint64_t eight;
      std::memcpy(&eight, text.data() + at, 8);
      if (eight & 0x8080808080808080u) break;
      at += 8;
    }
    if (at == text.size()) break;
    const size_t n = utf8_length(text, at);
    if ((n > 0) != valid) break;
    at += valid ? n : 1;
  }
  return at;
}

size_t utf8_unfinished(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const size_t at = text.size() - n;
    if ((uint8_t(text[at]) & 0xC0) == 0x80) continue;
    if (utf8_length(text, at) > 0) return 0;
    // It is incomplete if some further bytes complete it. E0 and F0 exclude the lowest second byte.
    std::string completed(text.substr(at));
    const uint8_t lead = uint8_t(completed[0]);
    while (completed.size() < 4) {
      const bool second = completed.size() == 1;
      completed += char(second && lead == 0xE0 ? 0xA0 : second && lead == 0xF0 ? 0x90 : 0x80);
      if (utf8_length(completed, 0) == completed.size()) return n;
    }
    return 0;
  }
  return 0;
}

void append_utf8(uint32_t c, std::string& out) {
  const auto tail = [&](int shift) { out += char(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xC0 | c >> 6), tail(0);
  } else if (c < 0x10000) {
    out += char(0xE0 | c >> 12), tail(6), tail(0);
  } else {
    out += char(0xF0 | c >> 18), tail(12), tail(6), tail(0);
  }
}

}  // namespace mtrain::data
