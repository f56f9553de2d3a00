#include "data/jinja/text.h"

#include <algorithm>
#include <span>

#include <utf8proc.h>

#include "data/jinja/value.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data::jinja {
namespace {

utf8proc_category_t category(std::string_view character) {
  return utf8proc_category(utf8proc_int32_t(code_point(character)));
}

// Characters whose upper case has several characters, by Unicode's SpecialCasing.
struct SpecialCase {
  uint32_t from;
  const char* upper;
  const char* title;
};
constexpr SpecialCase kSpecialCases[] = {
    {0xDF, "SS", "Ss"},   {0x149, "ʼN", "ʼN"},    {0x1F0, "J̌", "J̌"},      {0x390, "Ϊ́", "Ϊ́"},
    {0x3B0, "Ϋ́", "Ϋ́"},    {0x587, "ԵՒ", "Եւ"},    {0x1E96, "H̱", "H̱"},     {0x1E97, "T̈", "T̈"},
    {0x1E98, "W̊", "W̊"},   {0x1E99, "Y̊", "Y̊"},     {0x1E9A, "Aʾ", "Aʾ"},   {0x1F50, "Υ̓", "Υ̓"},
    {0x1F52, "Υ̓̀", "Υ̓̀"},   {0x1F54, "Υ̓́", "Υ̓́"},     {0x1F56, "Υ̓͂", "Υ̓͂"},     {0x1F80, "ἈΙ", "ᾈ"},
    {0x1F81, "ἉΙ", "ᾉ"},  {0x1F82, "ἊΙ", "ᾊ"},    {0x1F83, "ἋΙ", "ᾋ"},    {0x1F84, "ἌΙ", "ᾌ"},
    {0x1F85, "ἍΙ", "ᾍ"},  {0x1F86, "ἎΙ", "ᾎ"},    {0x1F87, "ἏΙ", "ᾏ"},    {0x1F88, "ἈΙ", "ᾈ"},
    {0x1F89, "ἉΙ", "ᾉ"},  {0x1F8A, "ἊΙ", "ᾊ"},    {0x1F8B, "ἋΙ", "ᾋ"},    {0x1F8C, "ἌΙ", "ᾌ"},
    {0x1F8D, "ἍΙ", "ᾍ"},  {0x1F8E, "ἎΙ", "ᾎ"},    {0x1F8F, "ἏΙ", "ᾏ"},    {0x1F90, "ἨΙ", "ᾘ"},
    {0x1F91, "ἩΙ", "ᾙ"},  {0x1F92, "ἪΙ", "ᾚ"},    {0x1F93, "ἫΙ", "ᾛ"},    {0x1F94, "ἬΙ", "ᾜ"},
    {0x1F95, "ἭΙ", "ᾝ"},  {0x1F96, "ἮΙ", "ᾞ"},    {0x1F97, "ἯΙ", "ᾟ"},    {0x1F98, "ἨΙ", "ᾘ"},
    {0x1F99, "ἩΙ", "ᾙ"},  {0x1F9A, "ἪΙ", "ᾚ"},    {0x1F9B, "ἫΙ", "ᾛ"},    {0x1F9C, "ἬΙ", "ᾜ"},
    {0x1F9D, "ἭΙ", "ᾝ"},  {0x1F9E, "ἮΙ", "ᾞ"},    {0x1F9F, "ἯΙ", "ᾟ"},    {0x1FA0, "ὨΙ", "ᾨ"},
    {0x1FA1, "ὩΙ", "ᾩ"},  {0x1FA2, "ὪΙ", "ᾪ"},    {0x1FA3, "ὫΙ", "ᾫ"},    {0x1FA4, "ὬΙ", "ᾬ"},
    {0x1FA5, "ὭΙ", "ᾭ"},  {0x1FA6, "ὮΙ", "ᾮ"},    {0x1FA7, "ὯΙ", "ᾯ"},    {0x1FA8, "ὨΙ", "ᾨ"},
    {0x1FA9, "ὩΙ", "ᾩ"},  {0x1FAA, "ὪΙ", "ᾪ"},    {0x1FAB, "ὫΙ", "ᾫ"},    {0x1FAC, "ὬΙ", "ᾬ"},
    {0x1FAD, "ὭΙ", "ᾭ"},  {0x1FAE, "ὮΙ", "ᾮ"},    {0x1FAF, "ὯΙ", "ᾯ"},    {0x1FB2, "ᾺΙ", "Ὰͅ"},
    {0x1FB3, "ΑΙ", "ᾼ"},  {0x1FB4, "ΆΙ", "Άͅ"},    {0x1FB6, "Α͂", "Α͂"},     {0x1FB7, "Α͂Ι", "ᾼ͂"},
    {0x1FBC, "ΑΙ", "ᾼ"},  {0x1FC2, "ῊΙ", "Ὴͅ"},    {0x1FC3, "ΗΙ", "ῌ"},    {0x1FC4, "ΉΙ", "Ήͅ"},
    {0x1FC6, "Η͂", "Η͂"},   {0x1FC7, "Η͂Ι", "ῌ͂"},    {0x1FCC, "ΗΙ", "ῌ"},    {0x1FD2, "Ϊ̀", "Ϊ̀"},
    {0x1FD3, "Ϊ́", "Ϊ́"},   {0x1FD6, "Ι͂", "Ι͂"},     {0x1FD7, "Ϊ͂", "Ϊ͂"},     {0x1FE2, "Ϋ̀", "Ϋ̀"},
    {0x1FE3, "Ϋ́", "Ϋ́"},   {0x1FE4, "Ρ̓", "Ρ̓"},     {0x1FE6, "Υ͂", "Υ͂"},     {0x1FE7, "Ϋ͂", "Ϋ͂"},
    {0x1FF2, "ῺΙ", "Ὼͅ"},  {0x1FF3, "ΩΙ", "ῼ"},    {0x1FF4, "ΏΙ", "Ώͅ"},    {0x1FF6, "Ω͂", "Ω͂"},
    {0x1FF7, "Ω͂Ι", "ῼ͂"},  {0x1FFC, "ΩΙ", "ῼ"},    {0xFB00, "FF", "Ff"},   {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"}, {0xFB03, "FFI", "Ffi"}, {0xFB04, "FFL", "Ffl"}, {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"}, {0xFB13, "ՄՆ", "Մն"},   {0xFB14, "ՄԵ", "Մե"},   {0xFB15, "ՄԻ", "Մի"},
    {0xFB16, "ՎՆ", "Վն"}, {0xFB17, "ՄԽ", "Մխ"},
};

const SpecialCase* special_case(uint32_t c) {
  for (const SpecialCase& row : kSpecialCases)
    if (row.from == c) return &row;
  return nullptr;
}

void append_upper(std::string_view character, bool as_title, std::string& out) {
  const uint32_t c = code_point(character);
  if (c < 128) {
    out += char(c >= 'a' && c <= 'z' ? c - 32 : c);
  } else if (const SpecialCase* special = special_case(c)) {
    out += as_title ? special->title : special->upper;
  } else {
    const auto code = utf8proc_int32_t(c);
    append_utf8(uint32_t(as_title ? utf8proc_totitle(code) : utf8proc_toupper(code)), out);
  }
}

// Characters that have a case and are not such letters: Unicode's Other_Uppercase and
// Other_Lowercase.
struct CodeRange {
  uint32_t first, last;
};
constexpr CodeRange kOtherUpper[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
constexpr CodeRange kOtherLower[] = {
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},    {0x2E0, 0x2E4},
    {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},   {0x1D78, 0x1D78},  {0x1D9B, 0x1DBF},
    {0x2071, 0x2071},   {0x207F, 0x207F},   {0x2090, 0x209C},   {0x2170, 0x217F},  {0x24D0, 0x24E9},
    {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},  {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};

bool is_in(std::string_view character, std::span<const CodeRange> ranges) {
  const uint32_t c = code_point(character);
  return std::ranges::any_of(ranges,
                             [c](const CodeRange& r) { return c >= r.first && c <= r.last; });
}

bool has_case(std::string_view character) {
  return is_upper(character) || is_lower(character) || category(character) == UTF8PROC_CATEGORY_LT;
}

// Whether the sigma at this place of a word is its last letter, which has a form of its own.
bool ends_word(std::string_view text, size_t at, size_t length) {
  bool before = false;
  for (auto c : Characters(text.substr(0, at)))
    if (has_case(c))
      before = true;
    else if (c != "'" && c != "." && c != ":" && category(c) != UTF8PROC_CATEGORY_MN)
      before = false;
  if (!before) return false;
  for (auto c : Characters(text.substr(at + length))) {
    if (has_case(c)) return false;
    if (c != "'" && c != "." && c != ":" && category(c) != UTF8PROC_CATEGORY_MN) return true;
  }
  return true;
}

void append_lower(std::string_view text, size_t at, std::string_view character, std::string& out) {
  constexpr uint32_t kSigma = 0x3A3, kFinalSigma = 0x3C2, kDottedI = 0x130;
  const uint32_t c = code_point(character);
  if (c < 128)
    out += char(c >= 'A' && c <= 'Z' ? c + 32 : c);
  else if (c == kSigma && ends_word(text, at, character.size()))
    append_utf8(kFinalSigma, out);
  else if (c == kDottedI)
    out += "i\xCC\x87";
  else
    append_utf8(uint32_t(utf8proc_tolower(utf8proc_int32_t(c))), out);
}

// Calls take(character, at) for each character.
template <class Take>
void for_each_character(std::string_view text, Take&& take) {
  const Characters all(text);
  for (auto it = all.begin(); it != all.end(); ++it) take(*it, it.at());
}

bool is_line_end(std::string_view character) {
  const uint32_t c = code_point(character);
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

size_t Characters::Iterator::length() const {
  const size_t n = utf8_length(text_, at_);
  return n ? n : 1;
}

int64_t character_count(std::string_view text) {
  int64_t count = 0;
  for (char c : text) count += (uint8_t(c) & 0xC0) != 0x80;
  return count;
}

size_t byte_of_character(std::string_view text, int64_t number) {
  for (size_t i = 0; i < text.size(); ++i)
    if ((uint8_t(text[i]) & 0xC0) != 0x80 && number-- == 0) return i;
  return text.size();
}

uint32_t code_point(std::string_view character) {
  const size_t n = character.empty() ? 0 : utf8_length(character, 0);
  return n ? decode_utf8(character, 0, n) : character.empty() ? 0 : uint8_t(character[0]);
}

bool is_space(std::string_view character) {
  const uint32_t c = code_point(character);
  return (c >= 0x1C && c <= 0x1F) || is_white_space(c);
}

bool is_printable(std::string_view character) {
  if (character.size() == 1) return character[0] >= 32 && character[0] < 127;
  switch (category(character)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}

bool is_upper(std::string_view character) {
  return category(character) == UTF8PROC_CATEGORY_LU || is_in(character, kOtherUpper);
}
bool is_lower(std::string_view character) {
  return category(character) == UTF8PROC_CATEGORY_LL || is_in(character, kOtherLower);
}

bool is_letter(std::string_view character) {
  const auto kind = category(character);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_LO;
}

bool is_decimal(std::string_view character) { return category(character) == UTF8PROC_CATEGORY_ND; }

// The digits of a system are ten characters in a row.
int digit_value(std::string_view decimal) {
  const auto c = utf8proc_int32_t(code_point(decimal));
  int before = 0;
  while (utf8proc_category(c - before - 1) == UTF8PROC_CATEGORY_ND) ++before;
  return before % 10;
}

bool is_digit(std::string_view character) {
  const uint32_t c = code_point(character);
  const bool raised = c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
                      (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
  const bool enclosed =
      (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) || (c >= 0x2488 && c <= 0x2490);
  return raised || enclosed || is_decimal(character);
}

bool is_numeric(std::string_view character) {
  const auto kind = category(character);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}

std::string upper(std::string_view text) {
  std::string out;
  for (auto c : Characters(text)) append_upper(c, false, out);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for_each_character(text, [&](auto c, size_t at) { append_lower(text, at, c, out); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for_each_character(text, [&](auto c, size_t at) {
    if (at == 0)
      append_upper(c, true, out);
    else
      append_lower(text, at, c, out);
  });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for_each_character(text, [&](auto c, size_t at) {
    if (inside)
      append_lower(text, at, c, out);
    else
      append_upper(c, true, out);
    inside = has_case(c);
  });
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for_each_character(text, [&](auto c, size_t at) {
    if (is_upper(c))
      append_lower(text, at, c, out);
    else if (is_lower(c))
      append_upper(c, false, out);
    else
      out += c;
  });
  return out;
}

std::string_view strip(std::string_view text, const std::string* set, bool left, bool right) {
  const auto drops = [&](std::string_view c) {
    return set ? set->find(c) != std::string::npos : is_space(c);
  };
  while (left && !text.empty() && drops(*Characters(text).begin()))
    text.remove_prefix((*Characters(text).begin()).size());
  while (right && !text.empty()) {
    const size_t n = std::max<size_t>(1, last_character(text));
    if (!drops(text.substr(text.size() - n))) break;
    text.remove_suffix(n);
  }
  return text;
}

namespace {

std::vector<std::string> split_at_space(std::string_view text, int64_t most, bool from_end) {
  std::vector<std::string> parts;
  while (true) {
    text = strip(text, nullptr, !from_end, from_end);
    if (text.empty()) break;
    if (most == 0) {
      parts.emplace_back(text);
      break;
    }
    --most;
    size_t cut = from_end ? 0 : text.size(), next = cut;  // a part ends at `cut`
    if (from_end) {
      for_each_character(text, [&](auto c, size_t at) {
        if (is_space(c)) next = at, cut = at + c.size();
      });
      parts.emplace_back(text.substr(cut));
      text = text.substr(0, next);
    } else {
      const Characters all(text);
      for (auto it = all.begin(); it != all.end(); ++it)
        if (is_space(*it)) {
          cut = it.at();
          break;
        }
      parts.emplace_back(text.substr(0, cut));
      text.remove_prefix(cut);
    }
  }
  if (from_end) std::ranges::reverse(parts);
  return parts;
}

}  // namespace

std::vector<std::string> split(std::string_view text, const std::string* separator, int64_t most,
                               bool from_end) {
  if (!separator) return split_at_space(text, most, from_end);
  if (separator->empty()) fail("a text is split at an empty text");
  std::vector<std::string> parts;
  while (most-- != 0) {
    const size_t at = from_end ? text.rfind(*separator) : text.find(*separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at), after = text.substr(at + separator->size());
    parts.emplace_back(from_end ? after : before);
    text = from_end ? before : after;
  }
  parts.emplace_back(text);
  if (from_end) std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const std::string_view c = *Characters(text.substr(at)).begin();
    size_t end = at + c.size();
    if (is_line_end(c)) {
      if (c == "\r" && text.substr(end).starts_with('\n')) ++end;
      lines.emplace_back(text.substr(begin, (keep_ends ? end : at) - begin));
      begin = end;
    }
    at = end;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most) {
  std::string out;
  const auto check = [&] {
    if (int64_t(out.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
  };
  if (from.empty()) {  // between all characters, as in Python
    for_each_character(text, [&](auto c, size_t) {
      if (most-- != 0)
        out += to;
      else
        most = 0;
      out += c;
      check();
    });
    return most != 0 ? out + std::string(to) : out;
  }
  while (most-- != 0) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
    check();
  }
  return out.append(text);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&#34;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += c;
  }
  return out;
}

bool append_escape(std::string_view character, char quote, std::string& out) {
  if (character[0] == quote || character == "\\")
    out.append("\\").append(character);
  else if (character == "\n")
    out += "\\n";
  else if (character == "\r")
    out += "\\r";
  else if (character == "\t")
    out += "\\t";
  else
    return false;
  return true;
}

std::string python_text(std::string_view text) {
  const bool doubled =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  std::string out(1, doubled ? '"' : '\'');
  const char quote = out[0];
  for (const std::string_view c : Characters(text)) {
    const uint32_t code = code_point(c);
    if (append_escape(c, quote, out)) continue;
    if (is_printable(c))
      out += c;
    else if (code < 0x100)
      out += fmt::format("\\x{:02x}", code);
    else if (code < 0x10000)
      out += fmt::format("\\u{:04x}", code);
    else
      out += fmt::format("\\U{:08x}", code);
  }
  return out + quote;
}

std::string repeat(std::string_view text, int64_t times) {
  std::string out;
  if (times <= 0 || text.empty()) return out;
  if (times > kLargestValue / int64_t(text.size()))
    fail("a text has more than {} bytes", kLargestValue);
  for (int64_t i = 0; i < times; ++i) out += text;
  return out;
}

}  // namespace mtrain::data::jinja
