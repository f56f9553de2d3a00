// Values as texts: Python's str(), repr() and the % operator, and JSON.
#include <algorithm>
#include <cmath>

#include "data/jinja/function.h"
#include "data/jinja/text.h"

namespace mtrain::data::jinja {
namespace {

void check_length(const std::string& text) {
  if (int64_t(text.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
}

void append_repr(const Value& value, int level, std::string& out);

void append_list(const std::vector<Value>& values, int level, std::string& out) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(values[i], level, out);
  }
}

template <class Entries>
void append_entries(const Entries& entries, int level, std::string& out) {
  out += '{';
  bool first = true;
  for (const auto& [key, value] : entries) {
    if (!std::exchange(first, false)) out += ", ";
    append_repr(Value(key), level, out);
    out += ": ";
    append_repr(value, level, out);
  }
  out += '}';
}

void append_repr(const Value& value, int level, std::string& out) {
  if (++level > kDeepestValue) fail("a value has more than {} levels", kDeepestValue);
  check_length(out);
  switch (value.kind()) {
    case Kind::undefined: out += "Undefined"; return;
    case Kind::none: out += "None"; return;
    case Kind::boolean: out += value.boolean() ? "True" : "False"; return;
    case Kind::integer: out += fmt::format("{}", value.integer()); return;
    case Kind::real: out += real_to_text(value.real()); return;
    case Kind::text: out += python_text(value.text()); return;
    case Kind::list:
      out += '[';
      append_list(value.items()->values, level, out);
      out += ']';
      return;
    case Kind::tuple:
      out += '(';
      append_list(value.items()->values, level, out);
      out += value.items()->values.size() == 1 ? ",)" : ")";
      return;
    case Kind::view:
      out += value.items()->label + "([";
      append_list(value.items()->values, level, out);
      out += "])";
      return;
    case Kind::range: out += value.items()->label; return;
    case Kind::dict: append_entries(value.dict().entries, level, out); return;
    case Kind::space:
      out += "<Namespace ";
      append_entries(value.space().members, level, out);
      out += '>';
      return;
    case Kind::loop:
      out += fmt::format("<LoopContext {}/{}>", value.loop().index0 + 1, value.loop().length());
      return;
    case Kind::function:
      if (value.function().closure) {
        out += fmt::format("<Macro {}>", python_text(value.function().name));
        return;
      }
      [[fallthrough]];
    case Kind::iteration:
      // Python prints an address, which no text should have.
      fail("a value of type {} has no text; read it by `for` or the filter `list`",
           type_name(value));
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}
  std::string out;

  void write(const Value& value, int level) {
    check_length(out);
    switch (value.kind()) {
      case Kind::none: out += "null"; return;
      case Kind::boolean: out += value.boolean() ? "true" : "false"; return;
      case Kind::integer: out += fmt::format("{}", value.integer()); return;
      case Kind::real: out += number(value.real()); return;
      case Kind::text: write_text(value.text()); return;
      case Kind::list:
      case Kind::tuple: {
        Separated list(*this, '[', ']', level, value.items()->values.empty());
        for (const Value& v : value.items()->values) {
          list.next();
          write(v, level + 1);
        }
        return;
      }
      case Kind::dict: write_object(value.dict(), level); return;
      case Kind::undefined: fail("tojson: {}", value.why_undefined());
      default: fail("tojson does not write a value of type {}", type_name(value));
    }
  }

 private:
  // Writes brackets, separators and line breaks around the elements of a list or an object.
  class Separated {
   public:
    Separated(JsonWriter& to, char open, char close, int level, bool empty)
        : to_(to), close_(close), level_(level), empty_(empty) {
      to_.out += open;
    }
    ~Separated() {
      if (!empty_) to_.line_break(level_);
      to_.out += close_;
    }
    void next() {
      if (!std::exchange(first_, false)) to_.out += to_.style_.item_separator;
      to_.line_break(level_ + 1);
    }

   private:
    JsonWriter& to_;
    char close_;
    int level_;
    bool empty_, first_ = true;
  };

  void line_break(int level) {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < level; ++i) out += *style_.indent;
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return real_to_text(value);
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::text: return key.text();
      case Kind::none: return "null";
      case Kind::boolean: return key.boolean() ? "true" : "false";
      case Kind::integer: return fmt::format("{}", key.integer());
      case Kind::real: return number(key.real());
      default: fail("tojson does not write a key of type {}", type_name(key));
    }
  }

  void write_object(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys)
      std::ranges::stable_sort(
          entries, [](const auto* a, const auto* b) { return compare(a->first, b->first) < 0; });
    Separated object(*this, '{', '}', level, entries.empty());
    for (const auto* entry : entries) {
      object.next();
      write_text(key_text(entry->first));
      out += style_.key_separator;
      write(entry->second, level + 1);
    }
  }

  void write_text(std::string_view text) {
    out += '"';
    for (const std::string_view c : Characters(text)) {
      const uint32_t code = code_point(c);
      if (append_escape(c, '"', out)) continue;
      if (c == "\f")
        out += "\\f";
      else if (c == "\b")
        out += "\\b";
      else if (code >= 0x20 && (code < 0x80 || !style_.ascii))
        out += c;
      else if (code < 0x10000)
        out += fmt::format("\\u{:04x}", code);
      else
        out += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    }
    out += '"';
  }

  const JsonStyle& style_;
};

// A conversion such as %5.2f.
struct Conversion {
  std::string flags;
  int64_t width = 0, precision = -1;
  char type = 's';
};

std::string padded(std::string text, const Conversion& c) {
  const int64_t missing = c.width - character_count(text);
  if (missing <= 0) return text;
  if (c.flags.find('-') != std::string::npos) return text + repeat(" ", missing);
  const bool number = c.type != 's' && c.type != 'r' && c.type != 'c';
  if (!number || c.flags.find('0') == std::string::npos) return repeat(" ", missing) + text;
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ');
  return text.insert(sign, repeat("0", missing));
}

std::string converted(const Conversion& c, const Value& value) {
  if (c.type == 's' || c.type == 'r' || c.type == 'a') {
    std::string text = c.type == 's' ? to_text(value) : to_repr(value);
    if (c.precision >= 0) text.resize(byte_of_character(text, c.precision));
    return text;
  }
  if (c.type == 'c') fail("the conversion %c is not supported");
  if (!value.is_number())
    fail("%{} needs a number, not a value of type {}", c.type, type_name(value));
  const bool negative = value.real() < 0;
  std::string digits;
  if (c.type == 'd' || c.type == 'i' || c.type == 'u') {
    if (value.is(Kind::real) && !(std::abs(value.real()) < 9e18)) fail("%{}: too large", c.type);
    const int64_t n = value.is(Kind::real) ? int64_t(value.real()) : value.integer();
    digits = fmt::format("{}", n < 0 ? 0 - uint64_t(n) : uint64_t(n));
  } else if (c.type == 'x' || c.type == 'X' || c.type == 'o') {
    if (!value.is_integral()) fail("%{} needs an integer", c.type);
    const int64_t n = value.integer();
    const uint64_t u = n < 0 ? 0 - uint64_t(n) : uint64_t(n);
    digits = c.type == 'x'   ? fmt::format("{:x}", u)
             : c.type == 'X' ? fmt::format("{:X}", u)
                             : fmt::format("{:o}", u);
  } else {
    const double size = std::abs(value.real());
    const int precision = int(c.precision < 0 ? 6 : std::min<int64_t>(c.precision, 300));
    switch (c.type) {
      case 'f':
      case 'F': digits = fmt::format("{:.{}f}", size, precision); break;
      case 'e': digits = fmt::format("{:.{}e}", size, precision); break;
      case 'E': digits = fmt::format("{:.{}E}", size, precision); break;
      case 'g': digits = fmt::format("{:.{}g}", size, precision); break;
      case 'G': digits = fmt::format("{:.{}G}", size, precision); break;
      default: fail("the conversion %{} is not supported", c.type);
    }
  }
  if (negative) return "-" + digits;
  if (c.flags.find('+') != std::string::npos) return "+" + digits;
  return c.flags.find(' ') != std::string::npos ? " " + digits : digits;
}

int64_t read_number(const std::string& form, size_t& at) {
  int64_t n = 0;
  while (at < form.size() && form[at] >= '0' && form[at] <= '9')
    n = std::min<int64_t>(10 * n + (form[at++] - '0'), kLargestValue + 1);
  return n;
}

}  // namespace

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(value, 0, out);
  return out;
}

std::string to_text(const Value& value) {
  if (value.is(Kind::text)) return value.text();
  return value.is(Kind::undefined) ? "" : to_repr(value);
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

Value format_percent(Machine& machine, const std::string& form, const Value& values) {
  std::string out;
  size_t used = 0;
  const auto next = [&]() -> Value {
    if (!values.is(Kind::tuple)) {
      if (used++ > 0) fail("% has too few values for its text");
      return values;
    }
    if (used >= values.items()->values.size()) fail("% has too few values for its text");
    return values.items()->values[used++];
  };
  for (size_t at = 0; at < form.size();) {
    if (form[at] != '%') {
      out += form[at++];
      continue;
    }
    Conversion c;
    std::optional<Value> named;
    if (++at < form.size() && form[at] == '(') {
      const size_t end = form.find(')', at);
      if (end == std::string::npos || !values.is(Kind::dict)) fail("%(name) needs a dictionary");
      const Value* found = values.dict().find(std::string_view(form).substr(at + 1, end - at - 1));
      if (!found) fail("% has no value for {}", form.substr(at, end - at + 1));
      named = *found;
      at = end + 1;
    }
    while (at < form.size() && std::string_view("-+ #0").find(form[at]) != std::string_view::npos)
      c.flags += form[at++];
    if (c.flags.find('#') != std::string::npos) fail("the flag # of % is not supported");
    c.width = read_number(form, at);
    if (at < form.size() && form[at] == '.') c.precision = read_number(form, ++at);
    if (at >= form.size()) fail("% has a text with an incomplete conversion");
    c.type = form[at++];
    out += c.type == '%' ? "%" : padded(converted(c, named ? *named : next()), c);
    check_length(out);
  }
  if (values.is(Kind::tuple) && used < values.items()->values.size())
    fail("% has more values than its text has conversions");
  if (!values.is(Kind::tuple) && !values.is(Kind::dict) && used == 0)
    fail("% has more values than its text has conversions");
  machine.charge(int64_t(out.size()));
  return Value(std::move(out));
}

}  // namespace mtrain::data::jinja
