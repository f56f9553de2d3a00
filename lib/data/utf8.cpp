#include "data/utf8.h"

#include <utf8proc.h>
#include <cstdlib>

#include "base/error.h"

namespace mtrain {

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

size_t utf8_run_end(std::string_view text, size_t at, bool valid) {
  while (at < text.size()) {
    const size_t n = utf8_length(text, at);
    if ((n > 0) != valid) break;
    at += valid ? n : 1;
  }
  return at;
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

namespace {
// No character below U+0300 changes or composes with its neighbours, nor does a CJK ideograph of
// U+4000 .. U+9FFF.
bool surely_nfc(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = uint8_t(text[i]);
    if (lead < 0x80)
      i += 1;
    else if (lead < 0xCC)
      i += 2;
    else if (lead >= 0xE4 && lead <= 0xE9)
      i += 3;
    else
      return false;
  }
  return true;
}
}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  if (surely_nfc(text)) return text;
  utf8proc_uint8_t* composed = nullptr;
  const auto options = utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  utf8proc_ssize_t(text.size()), &composed, options);
  MT_CHECK(bytes >= 0, "NFC of {} bytes: {}", text.size(), utf8proc_errmsg(bytes));
  storage.assign(reinterpret_cast<const char*>(composed), size_t(bytes));
  std::free(composed);
  return storage;
}

}  // namespace mtrain
