#include "data/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "data/jinja/text.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data::jinja {
namespace {

bool is_digit_of(char c, int base) {
  if (c >= '0' && c <= '9') return c - '0' < base;
  return base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'));
}

bool is_name_character(std::string_view c) {
  return c == "_" || (c.size() == 1 ? bool(isalnum(uint8_t(c[0]))) : is_letter(c) || is_numeric(c));
}

// Returns the source with line feeds alone as line ends, without the last one.
std::string normalized(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    if (utf8_run_end(source_, 0, true) != source_.size()) fail_here("the template is not UTF-8");
    while (at_ < source_.size()) read_data();
    push(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_here(std::string why) const { throw SyntaxFault{line_, std::move(why)}; }

  char peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool follows(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  void advance(size_t bytes) {
    line_ += int(
        std::count(source_.begin() + int64_t(at_), source_.begin() + int64_t(at_ + bytes), '\n'));
    at_ += bytes;
  }
  void skip_space() {
    while (at_ < source_.size()) {
      const std::string_view c = *Characters(std::string_view(source_).substr(at_)).begin();
      if (!is_space(c)) return;
      advance(c.size());
    }
  }
  void push(TokenKind kind, std::string text = "", Value value = {}) {
    tokens_.push_back({kind, line_, std::move(text), std::move(value)});
  }

  // Reads text up to the next tag, then the tag.
  void read_data() {
    const size_t tag = next_tag();
    const std::string_view all = source_;
    std::string_view text = all.substr(at_, tag - at_);
    if (tag >= source_.size()) {
      push(TokenKind::data, std::string(text));
      advance(text.size());
      return;
    }
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const std::string_view shown = trimmed(text, kind, sign);
    if (!shown.empty()) push(TokenKind::data, std::string(shown));
    advance(text.size() + 2 + (sign == '-' || sign == '+'));
    if (kind == '#')
      read_comment();
    else if (kind == '%' && read_raw())
      return;
    else
      read_tag(kind == '%');
  }

  size_t next_tag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos;
         at = source_.find('{', at + 1))
      if (at + 1 < source_.size() &&
          (source_[at + 1] == '%' || source_[at + 1] == '{' || source_[at + 1] == '#'))
        return at;
    return source_.size();
  }

  // Returns the text before a tag without the white space that the tag drops.
  std::string_view trimmed(std::string_view text, char kind, char sign) const {
    if (sign == '-') return strip(text, nullptr, false, true);
    if (sign == '+' || kind == '{') return text;
    const size_t line_begin = text.rfind('\n') + 1;  // 0 without one
    if (line_begin == 0 && !line_starting_) return text;
    return strip(text.substr(line_begin), nullptr, true, true).empty() ? text.substr(0, line_begin)
                                                                       : text;
  }

  // Reads the end of a tag, which begins here.
  void read_end(std::string_view end, bool drops_line_break) {
    const char sign = peek();
    const size_t begin = at_;
    advance((sign == '-' || sign == '+') + end.size());
    if (sign == '-')
      skip_space();
    else if (sign != '+' && drops_line_break && peek() == '\n')
      advance(1);
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void read_comment() {
    const size_t begin = at_, end = source_.find("#}", at_);
    if (end == std::string::npos) fail_here("a comment has no end");
    const char before = end > begin ? source_[end - 1] : '\0';
    advance(end - begin - (before == '-' || before == '+'));
    read_end("#}", true);
  }

  // Reads the text of a raw block; returns false if this is another block.
  bool read_raw() {
    const size_t begin = at_;
    const int line = line_;
    skip_space();
    if (follows("raw")) {
      advance(3);
      skip_space();
      if (follows("%}") || follows("-%}")) {
        read_end("%}", false);
        read_raw_text();
        return true;
      }
    }
    at_ = begin, line_ = line;
    return false;
  }

  void read_raw_text() {
    const size_t begin = at_;
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      const std::string_view text = std::string_view(source_).substr(begin, tag - begin);
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const int line = line_;
      advance(tag + 2 + (sign == '-' || sign == '+') - at_);
      skip_space();
      if (follows("endraw")) {
        advance(6);
        skip_space();
        if (follows("%}") || follows("-%}") || follows("+%}")) {
          const std::string_view shown = trimmed(text, '%', sign);
          if (!shown.empty()) tokens_.push_back({TokenKind::data, line, std::string(shown), {}});
          read_end("%}", true);
          return;
        }
      }
      advance(0);
    }
    fail_here("a raw block has no end");
  }

  // Reads the tokens of a tag to its end.
  void read_tag(bool block) {
    push(block ? TokenKind::block_begin : TokenKind::variable_begin);
    const std::string end = block ? "%}" : "}}";
    std::string open;  // brackets
    while (true) {
      if (open.empty() && (follows(end) || follows("-" + end) || (block && follows("+" + end)))) {
        push(block ? TokenKind::block_end : TokenKind::variable_end);
        read_end(end, block);
        return;
      }
      if (at_ >= source_.size()) fail_here(block ? "a block has no %}" : "an expression has no }}");
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const std::string_view c = *Characters(std::string_view(source_).substr(at_)).begin();
    if (is_space(c))
      skip_space();
    else if (c[0] >= '0' && c[0] <= '9')
      read_number();
    else if (is_name_character(c))
      read_name();
    else if (c == "'" || c == "\"")
      read_text(c[0]);
    else
      read_symbol(open);
  }

  void read_name() {
    size_t end = at_;
    while (end < source_.size()) {
      const std::string_view c = *Characters(std::string_view(source_).substr(end)).begin();
      if (!is_name_character(c)) break;
      end += c.size();
    }
    push(TokenKind::name, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  // Returns the end of digits, which single underscores may separate.
  size_t digits_end(size_t at, int base) const {
    const auto digit = [&](size_t i) {
      return i < source_.size() && is_digit_of(source_[i], base);
    };
    while (digit(at) || (at < source_.size() && source_[at] == '_' && digit(at + 1))) ++at;
    return at;
  }

  void read_number() {
    const auto digit = [&](size_t i) { return i < source_.size() && is_digit_of(source_[i], 10); };
    size_t end = digits_end(at_, 10);
    bool real = false;
    if (at_ == 0 || source_[at_ - 1] != '.') {
      if (end < source_.size() && source_[end] == '.' && digit(end + 1))
        end = digits_end(end + 1, 10), real = true;
      if (end < source_.size() && (source_[end] | 32) == 'e') {
        const size_t sign =
            end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
        if (digit(end + 1 + sign)) end = digits_end(end + 1 + sign, 10), real = true;
      }
    }
    int base = 10;
    size_t begin = at_;
    if (!real && peek() == '0') {
      const char letter = char(peek(1) | 32);
      const int other = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      const size_t first = at_ + 2 + (peek(2) == '_');
      if (other != 10 && first < source_.size() && is_digit_of(source_[first], other))
        base = other, begin = at_ + 2, end = digits_end(begin, base);
      else
        for (end = at_;
             end < source_.size() &&
             (source_[end] == '0' || (source_[end] == '_' && peek(end + 1 - at_) == '0'));)
          ++end;  // zeros alone; other digits begin another number, as in Jinja
    }
    std::string text = source_.substr(begin, end - begin);
    std::erase(text, '_');
    push(TokenKind::literal, "", real ? Value(real_of(text)) : Value(integer_of(text, base)));
    advance(end - at_);
  }

  // A number that is too large is infinite, as in Python.
  static double real_of(const std::string& text) { return std::strtod(text.c_str(), nullptr); }
  int64_t integer_of(const std::string& text, int base) const {
    int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value, base).ec != std::errc())
      fail_here(fmt::format("the number {} does not fit into 64 bits", text));
    return value;
  }

  void read_text(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_here("a text has no closing quote");
    const std::string_view inside = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    push(TokenKind::literal, "", Value(unescaped(inside)));
    advance(end + 1 - at_);
  }

  // Replaces the escapes of a Python text.
  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
      const char c = text[++i];
      if (const size_t at = kFrom.find(c); at != std::string_view::npos) {
        out += kTo[at];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code(text.substr(i + 1, count), count, 16, out);
        i += count;
      } else if (c >= '0' && c <= '7') {
        size_t count = 1;
        while (count < 3 && i + count < text.size() && is_digit_of(text[i + count], 8)) ++count;
        append_code(text.substr(i, count), count, 8, out);
        i += count - 1;
      } else if (c == 'N') {
        fail_here("an escape \\N{...} is not supported");
      } else {
        out += '\\', out += c;
      }
    }
    return out;
  }

  void append_code(std::string_view digits, size_t count, int base, std::string& out) const {
    uint32_t code = 0;
    const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    if (digits.size() < count || end.ptr != digits.data() + digits.size() ||
        end.ec != std::errc() || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail_here(fmt::format("the escape \\{} in a text is not a character", digits));
    append_utf8(code, out);
  }

  void read_symbol(std::string& open) {
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="})
      if (follows(two)) {
        push(TokenKind::symbol, std::string(two));
        return advance(2);
      }
    const char c = peek();
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      fail_here(
          fmt::format("unexpected character {}",
                      python_text(*Characters(std::string_view(source_).substr(at_)).begin())));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail_here(fmt::format("unexpected {}", c));
      if (open.back() != c) fail_here(fmt::format("unexpected {}, expected {}", c, open.back()));
      open.pop_back();
    }
    push(TokenKind::symbol, std::string(1, c));
    advance(1);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag, or nothing, ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace mtrain::data::jinja
