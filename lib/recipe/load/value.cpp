#include "recipe/load/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include <fmt/core.h>

#include "base/strings.h"
#include "base/terminal.h"
#include "recipe/schema/comm.h"

namespace mtrain::recipe {
namespace {

std::string shorten(const std::string& text) {
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

std::string bound(double x) {
  return x == std::floor(x) && std::fabs(x) < 1e15 ? fmt::format("{:.0f}", x)
                                                   : fmt::format("{}", x);
}

bool in_range(double value, const std::string& shown, const FieldOptions& o, ValueError& c) {
  const bool low = o.above_min ? value > o.min : value >= o.min;
  const bool high = o.below_max ? value < o.max : value <= o.max;
  if (low && high) return true;
  const bool has_min = std::isfinite(o.min), has_max = std::isfinite(o.max);
  std::string allowed;
  if (has_min)
    allowed += fmt::format("{} {}", o.above_min ? "greater than" : "at least", bound(o.min));
  if (has_min && has_max) allowed += " and ";
  if (has_max) allowed += fmt::format("{} {}", o.below_max ? "less than" : "at most", bound(o.max));
  c.reason = fmt::format("{} is out of range", shown);
  c.hint = "it must be " + allowed;
  return false;
}

// Removes single underscores between digits: 1_000 is 1000, as in YAML 1.1.
std::string without_underscores(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                         std::isdigit(static_cast<unsigned char>(text[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(text[i + 1]));
    if (!between) out += text[i];
  }
  return out;
}

bool to_double(const std::string& raw, double& out) {
  std::string text = without_underscores(raw);
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  if (begin == end || std::isalpha(static_cast<unsigned char>(*begin))) return false;
  const auto [stop, error] = std::from_chars(begin, end, out);
  return error == std::errc() && stop == end && std::isfinite(out);
}

// Returns what to write for a number with commas: 1000000 for 1,000,000, and 0.001 for 0,001, where
// the comma is a decimal point. Empty for other texts.
std::string without_commas(const std::string& text) {
  const std::vector<std::string> groups = split(text, ',');
  const bool fraction = groups[0].starts_with('0');
  if (groups.size() < 2 || (fraction && groups.size() > 2)) return {};
  std::string number;
  for (const std::string& group : groups) {
    const bool first = number.empty();
    const bool three = group.size() == 3 || (first && group.size() < 3);
    if (group.empty() || (!three && !fraction) ||
        !std::ranges::all_of(group, [](unsigned char c) { return std::isdigit(c) != 0; }))
      return {};
    number += (fraction && !first ? "." : "") + group;
  }
  return number;
}

bool refuse(const Node& node, const char* expected, const char* hint, ValueError& c) {
  c.reason = fmt::format("expected {}, got {}", expected, describe(node));
  std::string digits = without_commas(node.text);
  double ignored = 0;
  if (node.text.ends_with(',') && to_double(node.text.substr(0, node.text.size() - 1), ignored))
    digits = node.text.substr(0, node.text.size() - 1);
  c.hint = digits.empty() ? hint : fmt::format("write {}: numbers have no commas", digits);
  return false;
}

}  // namespace

bool is_integer_text(const std::string& raw) {
  const std::string text = without_underscores(raw);
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return text.size() > sign && std::all_of(text.begin() + long(sign), text.end(), [](char ch) {
           return std::isdigit(static_cast<unsigned char>(ch));
         });
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null: return "nothing";
    case Node::Kind::list: return fmt::format("a list of {}", node.items.size());
    case Node::Kind::map: return "a mapping (keys with values)";
    case Node::Kind::scalar: break;
  }
  double number = 0;
  if (node.quoted) return fmt::format("the quoted text \"{}\"", shorten(node.text));
  if (to_double(node.text, number)) return fmt::format("the number {}", shorten(node.text));
  return fmt::format("the text `{}`", shorten(node.text));
}

std::string fold_name(std::string_view name) {
  std::string out = to_lower(name);
  out.erase(std::remove_if(out.begin(), out.end(), [](char c) { return c == '_' || c == '-'; }),
            out.end());
  return out;
}

namespace {
std::string digits_of(std::string_view text) {
  std::string digits;
  std::ranges::copy_if(text, std::back_inserter(digits),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
  return digits;
}

// Whether a misspelt word may mean the name. It does not if their numbers differ (qwen2 and qwen3,
// fp8 and fp16), or the letters of a short part (deepseek_mla and deepseek_moe).
bool may_mean(const std::string& word, const std::string& name) {
  if (digits_of(word) != digits_of(name)) return false;
  const std::vector<std::string> a = split(word, '_'), b = split(name, '_');
  for (size_t i = 0; a.size() == b.size() && a.size() > 1 && i < a.size(); ++i)
    if (a[i].size() <= 3 && !std::ranges::is_permutation(a[i], b[i])) return false;
  return true;
}

// Returns the only name that begins with the word (fsdp2 for fsdp) or with which the word begins
// (cuda for cuda:0). Otherwise returns the nearest name that the word may mean, or an empty text.
std::string meant_choice(const std::string& word, const std::vector<std::string>& names) {
  std::vector<std::string> alike, begun;
  for (const auto& name : names) {
    if (may_mean(word, name)) alike.push_back(name);
    // llama4 does not mean llama, which is a different family; cuda:0 means cuda.
    const bool begins = word.size() >= 3 && name.starts_with(word);
    const bool continues_name = word.size() > name.size() && word.starts_with(name) &&
                                std::isalnum(static_cast<unsigned char>(word[name.size()])) == 0 &&
                                word[name.size()] != '_';
    if (begins || continues_name) begun.push_back(name);
  }
  return begun.size() == 1 ? begun[0] : nearest(word, alike);
}
}  // namespace

int read_choice(const Node& node, const std::vector<std::string>& choices,
                const std::vector<std::string>& shown, ValueError& c) {
  std::string word = node.text;
  if (node.kind == Node::Kind::null) word = "none";
  if (node.kind == Node::Kind::scalar || node.kind == Node::Kind::null) {
    const std::string folded = fold_name(word);
    for (size_t i = 0; i < choices.size(); ++i)
      if (fold_name(choices[i]) == folded) return int(i);
  }
  c.reason = fmt::format("{} is not one of its values", describe(node));
  std::string list;
  for (const auto& name : shown) {
    if (!list.empty()) list += ", ";
    list += name;
  }
  const std::string close = meant_choice(to_lower(word), shown);
  c.hint = close.empty() ? "choose from: " + list
                         : fmt::format("did you mean `{}`? choose from: {}", close, list);
  return -1;
}

bool read_value(const Node& node, const FieldOptions&, bool& out, ValueError& c) {
  if (node.kind == Node::Kind::scalar && !node.quoted) {
    const std::string word = to_lower(node.text);
    if (word == "true" || word == "yes" || word == "on") return out = true, true;
    if (word == "false" || word == "no" || word == "off") return out = false, true;
  }
  return refuse(node, "true or false", "write true or false, without quotes", c);
}

// The limit of an integer whose field does not have one. Sums of such numbers, and products with
// small factors, fit into 64 bits.
constexpr double kMaxInteger = double(1ll << 40);

bool read_value(const Node& node, const FieldOptions& options, int64_t& out, ValueError& c) {
  const char* hint = "write a whole number such as 1024, without quotes";
  FieldOptions limits = options;
  if (!std::isfinite(limits.max)) limits.max = kMaxInteger;
  if (node.kind != Node::Kind::scalar || node.quoted)
    return refuse(node, "a whole number", hint, c);
  double value = 0;
  if (is_integer_text(node.text)) {
    const std::string digits = without_underscores(node.text);
    const char* begin = digits.data() + (digits[0] == '+');
    const size_t first = digits.find_first_not_of("+-");
    if (digits[first] == '0' && digits.size() > first + 1) {
      c.reason =
          fmt::format("{} begins with 0, which YAML 1.1 takes for an octal number", node.text);
      c.hint = "write the number without leading zeros";
      return false;
    }
    const auto [stop, error] = std::from_chars(begin, digits.data() + digits.size(), out);
    if (error != std::errc()) {
      c.reason = fmt::format("the number {} does not fit into 64 bits", shorten(node.text));
      c.hint = hint;
      return false;
    }
    value = double(out);
  } else {
    if (!to_double(node.text, value)) return refuse(node, "a whole number", hint, c);
    if (value != std::floor(value) || std::fabs(value) > 9007199254740992.0)
      return refuse(node, "a whole number", hint, c);  // 1e6 is whole, 1e300 and 2.5 are not
    out = int64_t(value);
  }
  return in_range(value, fmt::format("{}", out), limits, c);
}

bool read_value(const Node& node, const FieldOptions& options, double& out, ValueError& c) {
  if (node.kind != Node::Kind::scalar || node.quoted || !to_double(node.text, out))
    return refuse(node, "a number", "write a number such as 0.1 or 3e-4, without quotes", c);
  return in_range(out, node.text, options, c);
}

bool read_value(const Node& node, const FieldOptions& options, std::string& out, ValueError& c) {
  if (node.kind != Node::Kind::scalar) return refuse(node, "text", "write one word or path", c);
  const bool broken = !options.lines && node.text.find('\n') != std::string::npos;
  if (broken || node.text.find('\0') != std::string::npos)
    return refuse(node, "one line of text", "remove the line break or NUL character", c);
  out = node.text;
  return true;
}

// Returns the reference that gave a value, without plain text, which may be a secret. Returns
// ${env:A} for ${env:A,secret}, and an empty text if there is text around the reference.
std::string pure_reference(std::string_view text) {
  if (!text.starts_with("${") || !text.ends_with('}')) return {};
  int open = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    open += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (i > 0 && open == 0) return {};
  }
  const std::string_view inside = text.substr(2, text.size() - 3);
  const size_t comma = inside.find(',');
  if (!inside.starts_with("env:") || comma == std::string_view::npos) return std::string(text);
  const std::string other = pure_reference(trim(inside.substr(comma + 1)));
  return fmt::format("${{{}{}{}}}", trim(inside.substr(0, comma)), other.empty() ? "" : ",", other);
}

// Messages do not quote the values, which may be secrets.
bool read_value(const Node& node, const FieldOptions&, std::map<std::string, EnvVariable>& out,
                ValueError& c) {
  c.hint = "write {NAME: value}";
  if (node.kind != Node::Kind::map) {
    c.reason = "expected a mapping of variables";
    return false;
  }
  out.clear();
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const Node& item = node.items[i];
    EnvVariable& variable = out[node.keys[i].name];
    if (item.unset()) continue;
    if (item.kind != Node::Kind::scalar || item.text.find('\0') != std::string::npos ||
        item.text.find('\n') != std::string::npos) {
      c.reason = fmt::format("the value of {} is not one line of text", node.keys[i].name);
      return false;
    }
    variable = {item.text, pure_reference(item.reference)};
  }
  return true;
}

std::string show_value(bool value) { return value ? "true" : "false"; }
std::string show_value(int64_t value) { return fmt::format("{}", value); }

std::string show_value(double value) {
  std::string s = fmt::format("{}", value);
  // YAML 1.1 readers take 1e-05 for text; 1.0e-05 is a number for everyone.
  if (const auto e = s.find('e'); e != std::string::npos && s.find('.') == std::string::npos)
    s.insert(e, ".0");
  return s;
}

namespace {

// Returns a text of several lines, or with control characters, as one line that any terminal shows.
std::string show_escaped(const std::string& value) {
  std::string s = "\"";
  for (size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    const auto u = static_cast<unsigned char>(c);
    if (u == 0xc2 && i + 1 < value.size() && !is_printable(value.substr(i, 2)))
      s += fmt::format("\\x{:02x}", static_cast<unsigned char>(value[++i]));  // U+0080 to U+009F
    else if (c == '\n')
      s += "\\n";
    else if (c == '\t')
      s += "\\t";
    else if (c == '\r')
      s += "\\r";
    else if (u < ' ' || u == 0x7f)
      s += fmt::format("\\x{:02x}", u);
    else if (c == '"' || c == '\\')
      s += std::string("\\") + c;
    else
      s += c;
  }
  return s + "\"";
}

}  // namespace

std::string show_value(const std::string& value) {
  if (!is_printable(value)) return show_escaped(value);
  Node plain;
  plain.kind = Node::Kind::scalar, plain.text = value;
  const std::string word = to_lower(value);
  double number = 0;
  const bool special = plain.unset() || word == "auto" || word == "true" || word == "false" ||
                       word == "yes" || word == "no" || word == "on" || word == "off" ||
                       word == "y" || word == "n" || to_double(value, number);
  const bool safe = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '.' || c == '_' ||
           c == '-' || c == '+';
  });
  if (!special && safe && value[0] != '-' && value[0] != '.') return value;
  if (!special && safe && (value.rfind("./", 0) == 0 || value.rfind("../", 0) == 0)) return value;
  std::string s = "'";
  for (char c : value) s += c == '\'' ? std::string("''") : std::string(1, c);
  return s + "'";
}

std::string show_value(const std::map<std::string, EnvVariable>& value) {
  std::string s;
  for (const auto& [name, variable] : value)
    s += fmt::format("{}{}: {}", s.empty() ? "" : ", ", show_value(name),
                     variable.reference.empty() ? "null" : show_value(variable.reference));
  return "{" + s + "}";
}

std::string TypeInfo::str() const {
  const auto word = [](Kind k) -> std::string {
    switch (k) {
      case Kind::boolean: return "true/false";
      case Kind::integer: return "integer";
      case Kind::number: return "number";
      case Kind::text: return "text";
      case Kind::choice: return "choice";
      case Kind::list: return "list";
      case Kind::mapping: return "mapping";
    }
    return "?";
  };
  std::string s = kind == Kind::list ? "list of " + word(item) : word(kind);
  if (may_be_none) s += " or none";
  if (may_be_auto) s += " or auto";
  return s;
}

}  // namespace mtrain::recipe
