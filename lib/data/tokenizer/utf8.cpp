#include "data/tokenizer/utf8.h"

#include <utf8proc.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

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
    // It is unfinished if some further bytes complete it. E0 and F0 exclude the lowest second byte.
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

namespace {

// Returns the length in bytes of a well-formed character with this lead byte.
size_t length_by_lead(uint8_t lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Returns whether a character with this lead byte is in normal form C and never composes with the
// character before it. All characters below U+0300 and from U+4000 to U+9FFF are such.
bool is_settled(uint8_t lead) { return lead < 0xCC || (lead >= 0xE4 && lead <= 0xE9); }

void append_nfc(std::string_view text, std::string& out) {
  utf8proc_uint8_t* composed = nullptr;
  const auto options = utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  utf8proc_ssize_t(text.size()), &composed, options);
  MT_CHECK(bytes >= 0, "NFC of {} bytes: {}", text.size(), utf8proc_errmsg(bytes));
  out.append(reinterpret_cast<const char*>(composed), size_t(bytes));
  std::free(composed);
}

}  // namespace

// Composes only the runs of unsettled characters, each together with the settled character before
// it, with which a mark may compose.
std::string_view to_nfc(std::string_view text, std::string& storage) {
  const auto lead = [&](size_t i) { return uint8_t(text[i]); };
  storage.clear();
  size_t copied = 0, previous = 0;
  for (size_t at = 0; at < text.size();) {
    if (is_settled(lead(at))) {
      previous = at;
      at += length_by_lead(lead(at));
      continue;
    }
    size_t end = at;
    while (end < text.size() && !is_settled(lead(end))) end += length_by_lead(lead(end));
    storage += text.substr(copied, previous - copied);
    append_nfc(text.substr(previous, end - previous), storage);
    copied = previous = at = end;
  }
  if (copied == 0) return text;
  storage += text.substr(copied);
  return storage;
}

}  // namespace mtrain::data
