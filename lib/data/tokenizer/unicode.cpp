#include "data/tokenizer/unicode.h"

#include <utf8proc.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "data/tokenizer/unicode_versions.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

// Characters whose first byte is below this never change in the form and never compose with the
// character before them. Those from U+4000 to U+9FFF (first bytes E4 to E9) do neither in any form.
uint8_t unsettled_from(NormalForm form) {
  switch (form) {
    case NormalForm::nfc: return 0xCC;  // U+0300
    case NormalForm::nfd: return 0xC3;  // U+00C0
    case NormalForm::nfkc:
    case NormalForm::nfkd: return 0xC0;  // U+0080
  }
  return 0;
}
bool is_settled(uint8_t lead, uint8_t bound) {
  return lead < bound || (lead >= 0xE4 && lead <= 0xE9);
}

// Returns the length in bytes of a well-formed character with this first byte.
size_t length_by_lead(uint8_t lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

template <class Row>
const Row* find_row(std::span<const Row> rows, uint32_t c) {
  const auto row = std::upper_bound(rows.begin(), rows.end(), c,
                                    [](uint32_t x, const Row& r) { return x <= r.last; });
  return row != rows.end() && c >= row->first ? &*row : nullptr;
}

void append_mapped(std::string_view text, NormalForm form, std::string& out) {
  if (text.empty()) return;
  int options = UTF8PROC_STABLE;
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  options |= composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const auto bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   utf8proc_ssize_t(text.size()), &mapped, utf8proc_option_t(options));
  MT_CHECK(bytes >= 0, "the normal form of {} bytes: {}", text.size(), utf8proc_errmsg(bytes));
  out.append(reinterpret_cast<const char*>(mapped), size_t(bytes));
  std::free(mapped);
}

// Normalizes the runs of text between characters that Unicode 9 does not know.
void append_stretches(std::string_view text, NormalForm form, std::string& out) {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t n = length_by_lead(uint8_t(text[at]));
    if (find_row(unknown_to_normal_forms(), decode_utf8(text, at, n))) {
      append_mapped(text.substr(done, at - done), form, out);
      out += text.substr(at, n);
      done = at + n;
    }
    at += n;
  }
  append_mapped(text.substr(done), form, out);
}

}  // namespace

bool is_normal_form(std::string_view text, NormalForm form) {
  const uint8_t bound = unsettled_from(form);
  for (size_t at = 0; at < text.size(); ++at) {
    for (uint64_t eight; at + 8 <= text.size(); at += 8) {  // ASCII, eight at a time
      std::memcpy(&eight, text.data() + at, 8);
      if (eight & 0x8080808080808080u) break;
    }
    // Continuation bytes of characters are below every bound.
    if (at < text.size() && !is_settled(uint8_t(text[at]), bound)) return false;
  }
  return true;
}

// Maps only the runs of unsettled characters, each together with the settled character before it: a
// mark may compose with that character.
void append_normal_form(std::string_view text, NormalForm form, std::string& out) {
  const uint8_t bound = unsettled_from(form);
  const auto lead = [&](size_t i) { return uint8_t(text[i]); };
  size_t copied = 0, previous = 0;
  for (size_t at = 0; at < text.size();) {
    if (is_settled(lead(at), bound)) {
      previous = at;
      at += length_by_lead(lead(at));
      continue;
    }
    size_t end = at;
    while (end < text.size() && !is_settled(lead(end), bound)) end += length_by_lead(lead(end));
    out += text.substr(copied, previous - copied);
    append_stretches(text.substr(previous, end - previous), form, out);
    copied = previous = at = end;
  }
  out += text.substr(copied);
}

void append_lowercase(std::string_view text, std::string& out) {
  for (size_t at = 0; at < text.size();) {
    const size_t n = length_by_lead(uint8_t(text[at]));
    if (n == 1) {
      const char c = text[at];
      out += c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c;
    } else {
      const uint32_t c = decode_utf8(text, at, n);
      if (c == 0x130) {
        out += "i\u0307";  // the only character whose lower case has two characters
      } else {
        const uint32_t recent = recent_lowercase(c);
        append_utf8(recent ? recent : uint32_t(utf8proc_tolower(utf8proc_int32_t(c))), out);
      }
    }
    at += n;
  }
}

std::string_view with_stand_ins(std::string_view text, std::string& storage) {
  bool copied = false;
  for (size_t at = 0; at < text.size();) {
    for (uint64_t eight; at + 8 <= text.size(); at += 8) {  // ASCII, eight at a time
      std::memcpy(&eight, text.data() + at, 8);
      if (eight & 0x8080808080808080u) break;
    }
    if (at == text.size()) break;
    const uint8_t lead = uint8_t(text[at]);
    const size_t n = length_by_lead(lead);
    // Recent characters begin with E0 to E3, EA, or F0.
    if (n >= 3 && (lead < 0xE4 || lead == 0xEA || lead == 0xF0)) {
      if (const StandIn* row = find_row(recent_characters(), decode_utf8(text, at, n))) {
        if (!copied) storage = text;
        copied = true;
        std::string stand_in;
        append_utf8(row->stand_in, stand_in);
        MT_CHECK(stand_in.size() == n, "U+{:X} has another length", row->stand_in);
        storage.replace(at, n, stand_in);
      }
    }
    at += n;
  }
  return copied ? std::string_view(storage) : text;
}

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t leading_white_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t n = utf8_length(text, at);
    if (n == 0 || !is_white_space(decode_utf8(text, at, n))) break;
    at += n;
  }
  return at;
}

size_t trailing_white_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t n = last_character(text.substr(0, end));
    if (n == 0 || !is_white_space(decode_utf8(text, end - n, n))) break;
    end -= n;
  }
  return text.size() - end;
}

const char* const kWordCharacters =
    R"([\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149})"
    R"(\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}\x{200C}\x{200D}])";

const char* const kNumbers =
    R"([\p{N})"
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11DE0}-\x{11DE9}\x{11F50}-)"
    R"(\x{11F59}\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{16FF4}-\x{16FF6}\x{1CCF0}-\x{1CCF9})"
    R"(\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"
    R"(])";

const char* const kPunctuation =
    R"((?![)"
    R"(\x{61D}\x{9FD}\x{A76}\x{C77}\x{C84}\x{1B4E}-\x{1B4F}\x{1B7D}-\x{1B7F}\x{2E43}-\x{2E4F})"
    R"(\x{2E52}-\x{2E5D}\x{2E60}-\x{2E63}\x{10D6E}\x{10EAD}\x{10ED0}\x{10F55}-\x{10F59})"
    R"(\x{10F86}-\x{10F89}\x{113D4}-\x{113D5}\x{113D7}-\x{113D8}\x{1144B}-\x{1144F}\x{1145A}-)"
    R"(\x{1145B}\x{1145D}\x{11660}-\x{1166C}\x{116B9}\x{1183B}\x{11944}-\x{11946}\x{119E2})"
    R"(\x{11A3F}-\x{11A46}\x{11A9A}-\x{11A9C}\x{11A9E}-\x{11AA2}\x{11B00}-\x{11B09}\x{11BE1})"
    R"(\x{11C41}-\x{11C45}\x{11C70}-\x{11C71}\x{11EF7}-\x{11EF8}\x{11F43}-\x{11F4F}\x{11FFF})"
    R"(\x{12FF1}-\x{12FF2}\x{16D6D}-\x{16D6F}\x{16E97}-\x{16E9A}\x{16FE2}\x{1E5FF}\x{1E95E}-)"
    R"(\x{1E95F})"
    R"(])[\p{P}$+<=>^`|~\x{166D}\x{111C9}])";

}  // namespace mtrain::data
