#include "data/tokenizer/regex.h"

#include <cctype>
#include <cstring>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace mtrain::data {
namespace {

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

[[noreturn]] void refuse_pattern(const std::string& pattern, const std::string& where,
                                 std::string what) {
  throw UserError(fmt::format("{}: the regular expression {} uses {}, which is not supported",
                              where, pattern, what),
                  "use a tokenizer with the GPT-2, Llama 3 or Qwen pre-tokenizer");
}

// Refuses groups "(?..." that do not mean the same in both dialects: (?m) differs, and (?s), named
// groups and recursion exist in only one of them.
void check_group(const std::string& pattern, size_t open, const std::string& where) {
  const std::string_view rest = std::string_view(pattern).substr(open + 1);
  if (rest.starts_with("*")) refuse_pattern(pattern, where, "(*");
  if (!rest.starts_with("?")) return;
  for (const char* known : {"?:", "?=", "?!", "?>", "?<=", "?<!", "?#"})
    if (rest.starts_with(known)) return;
  const size_t end = rest.find_first_not_of("ix-", 1);
  if (end != std::string_view::npos && end > 1 && (rest[end] == ':' || rest[end] == ')')) return;
  refuse_pattern(pattern, where, fmt::format("({}", rest.substr(0, 2)));
}

// Checks the quantifier {...} at `open`, which may be {n}, {n,} or {n,m}, also lazy. Refuses the
// others. Oniguruma repeats {n,m}+ and makes {n}? optional, while PCRE2 reads them as possessive
// and as lazy; {,m} is a quantifier in only one of the dialects.
void check_interval(const std::string& pattern, size_t open, const std::string& where) {
  const size_t close = pattern.find('}', open);
  const std::string inside =
      close == std::string::npos ? "" : pattern.substr(open + 1, close - open - 1);
  const auto digits_end = inside.find_first_not_of("0123456789");
  const bool fixed = digits_end == std::string::npos;
  if (inside.empty() || digits_end == 0 ||
      (!fixed && (inside[digits_end] != ',' ||
                  inside.find_first_not_of("0123456789", digits_end + 1) != std::string::npos)))
    refuse_pattern(pattern, where, "a { that does not begin {n,m}");
  const char after = close + 1 < pattern.size() ? pattern[close + 1] : '\0';
  if (after == '+' || after == '*' || (fixed && after == '?'))
    refuse_pattern(pattern, where, fmt::format("{{{}}}{}", inside, after));
}

// Translates a pattern from Oniguruma's dialect to PCRE2's. For the constructs that tokenizers use,
// the two differ in white space (PCRE2's \s also has U+180E) and \uHHHH, which are translated.
// Other constructs that they read differently are refused, since they would silently give other
// tokens.
std::string translate(const std::string& pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      if (++i == pattern.size()) refuse_pattern(pattern, where, "a lone \\ at its end");
      const char e = pattern[i];
      if (e == 's') {
        out += "\\p{White_Space}";
      } else if (e == 'S') {
        out += "\\P{White_Space}";
      } else if (e == 'u') {
        if (pattern.size() < i + 5 ||
            pattern.find_first_not_of("0123456789abcdefABCDEF", i + 1) < i + 5)
          refuse_pattern(pattern, where, "\\u without four hexadecimal digits");
        out += "\\x{" + pattern.substr(i + 1, 4) + "}";
        i += 4;
      } else if (std::isalnum(uint8_t(e)) && !std::strchr("pPdDnrtfx", e)) {
        refuse_pattern(pattern, where, fmt::format("\\{}", e));
      } else {
        out += c;
        out += e;
        if (std::strchr("pPx", e) && i + 1 < pattern.size() && pattern[i + 1] == '{')
          out += pattern[++i];  // belongs to the escape, and does not begin a quantifier
      }
      continue;
    }
    if (in_class) {
      if (c == '[') refuse_pattern(pattern, where, "a set inside a set");
      if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&')
        refuse_pattern(pattern, where, "an intersection of sets");
      if (c == ']') in_class = false;
    } else if (c == '(') {
      check_group(pattern, i, where);
    } else if (c == '{') {
      check_interval(pattern, i, where);
    } else if (c == '[') {
      in_class = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[i++];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']')
        refuse_pattern(pattern, where, "an empty set");
    }
    out += pattern[i];
  }
  return out;
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string where;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

namespace {
constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK;

void compile(pcre2_code*& code, bool& jit, const std::string& pattern, uint32_t options,
             const std::string& where) {
  int error = 0;
  PCRE2_SIZE at = 0;
  // PCRE2 checks that the pattern is well-formed UTF-8, but not the texts: find() requires that.
  code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                       (options & ~uint32_t(PCRE2_NO_UTF_CHECK)), &error, &at, nullptr);
  if (!code)
    throw UserError(fmt::format("{}: the regular expression {} is malformed at character {}: {}",
                                where, pattern, at, pcre2_message(error)));
  jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}
}  // namespace

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(const std::string& pattern, const std::string& where) : code_(new Code) {
  code_->where = where;
  // Oniguruma's ^ and $ always match at the boundaries of lines.
  compile(code_->code, code_->jit, translate(pattern, where), kOptions | PCRE2_MULTILINE, where);
}
Regex Regex::native(const std::string& pattern) {
  auto code = std::make_unique<Code>();
  code->where = "mtrain";
  compile(code->code, code->jit, pattern, kOptions, code->where);
  return Regex(std::move(code));
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

struct Regex::Scratch::State {
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Scratch::Scratch(const Regex& regex) : state_(new State) {
  state_->match = pcre2_match_data_create_from_pattern(regex.code_->code, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  state_->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr);
  MT_CHECK(state_->match && state_->context && state_->stack, "PCRE2 is out of memory");
  pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}
Regex::Scratch::~Scratch() = default;
Regex::Scratch::Scratch(Scratch&&) noexcept = default;

bool Regex::find(std::string_view text, size_t from, Scratch& scratch, size_t& begin,
                 size_t& end) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : "");
  auto& s = *scratch.state_;
  const int found =
      code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), from, 0, s.match, s.context)
                 : pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, s.match,
                               s.context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    throw RunError(fmt::format("{}: the regular expression failed on a text of {} bytes: {}",
                               code_->where, text.size(), pcre2_message(found)));
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(s.match);
  begin = offsets[0];
  end = offsets[1];
  return true;
}

}  // namespace mtrain::data
