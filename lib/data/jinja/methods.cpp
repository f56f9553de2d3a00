// The methods of texts, lists and dictionaries.
#include <algorithm>
#include <map>

#include "data/jinja/function.h"
#include "data/jinja/text.h"

namespace mtrain::data::jinja {
namespace {

using Methods = std::map<std::string_view, Native>;

Value stripped(const char* name, const Value& self, Arguments& args, bool left, bool right) {
  const Parameters p(name, args, {"chars"});
  return Value(strip(self.text(), p.optional_text(0), left, right));
}

Value list_of(std::vector<std::string> texts) {
  std::vector<Value> values;
  for (std::string& text : texts) values.emplace_back(std::move(text));
  return Value::list(std::move(values));
}

Value split_by(const char* name, Machine& machine, const Value& self, Arguments& args,
               bool from_end) {
  const Parameters p(name, args, {"sep", "maxsplit"});
  auto parts = split(self.text(), p.optional_text(0), p.integer(1, -1), from_end);
  machine.charge(int64_t(self.text().size() + parts.size() * sizeof(Value)));
  return list_of(std::move(parts));
}

// Returns the part of a text between the arguments `start` and `end`, and its first byte.
std::string_view part_of(const std::string& text, const Parameters& p, size_t start,
                         size_t& first) {
  const int64_t n = character_count(text);
  const auto place = [&](size_t i, int64_t otherwise) {
    const int64_t at = p.integer(i, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + n : at, 0, n);
  };
  const int64_t from = place(start, 0), to = place(start + 1, n);
  first = byte_of_character(text, from);
  const size_t last = byte_of_character(text, to);
  return std::string_view(text).substr(first, last < first ? 0 : last - first);
}

Value tests_end(const char* name, const Value& self, Arguments& args, bool at_start) {
  const Parameters p(name, args, {"prefix", "start", "end"}, 1);
  size_t first = 0;
  const std::string_view text = part_of(self.text(), p, 1, first);
  const auto fits = [&](const Value& v) {
    if (!v.is(Kind::text)) fail("{} needs a text, not a value of type {}", name, type_name(v));
    return at_start ? text.starts_with(v.text()) : text.ends_with(v.text());
  };
  if (p[0].is(Kind::tuple)) return std::ranges::any_of(p[0].items()->values, fits);
  return fits(p[0]);
}

// Returns the number of the character at which the text is found; -1 if it is not.
int64_t found_at(const char* name, const Value& self, Arguments& args, bool last) {
  const Parameters p(name, args, {"sub", "start", "end"}, 1);
  size_t first = 0;
  const std::string_view text = part_of(self.text(), p, 1, first);
  const size_t at = last ? text.rfind(p.text(0)) : text.find(p.text(0));
  if (at == std::string_view::npos) return -1;
  return character_count(std::string_view(self.text()).substr(0, first + at));
}

Value index_of(const char* name, const Value& self, Arguments& args, bool last) {
  const int64_t at = found_at(name, self, args, last);
  if (at < 0) fail("{}: the text is not found", name);
  return at;
}

Value count_in(Machine&, const Value& self, Arguments& args) {
  const Parameters p("count", args, {"sub", "start", "end"}, 1);
  size_t first = 0;
  const std::string_view text = part_of(self.text(), p, 1, first);
  if (p.text(0).empty()) return character_count(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(p.text(0)); at != std::string_view::npos;
       at = text.find(p.text(0), at + p.text(0).size()))
    ++count;
  return count;
}

Value join_texts(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("join", args, {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& v : elements_of(p[0])) {
    if (!v.is(Kind::text)) fail("join needs texts, not a value of type {}", type_name(v));
    if (!std::exchange(first, false)) out += self.text();
    out += v.text();
    if (int64_t(out.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
  }
  machine.charge(int64_t(out.size()));
  return Value(std::move(out));
}

Value replaced(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("replace", args, {"old", "new", "count"}, 2);
  std::string out = replace(self.text(), p.text(0), p.text(1), p.integer(2, -1));
  machine.charge(int64_t(out.size()));
  return Value(std::move(out));
}

Value partitioned(const char* name, const Value& self, Arguments& args, bool last) {
  const Parameters p(name, args, {"sep"}, 1);
  const std::string &text = self.text(), &sep = p.text(0);
  if (sep.empty()) fail("{} needs a text that is not empty", name);
  const size_t at = last ? text.rfind(sep) : text.find(sep);
  if (at == std::string::npos)
    return last ? Value::tuple({"", "", self}) : Value::tuple({self, "", ""});
  return Value::tuple({text.substr(0, at), sep, text.substr(at + sep.size())});
}

Value filled(const char* name, Machine& machine, const Value& self, Arguments& args, int side) {
  const Parameters p(name, args, {"width", "fillchar"}, 1);
  const std::string fill = p.has(1) ? p.text(1) : " ";
  if (character_count(fill) != 1) fail("{} fills with one character", name);
  const int64_t width = p.integer(0, 0), missing = width - character_count(self.text());
  if (missing <= 0) return self;
  // Python's center() puts the odd character to the left if the width is odd.
  const int64_t left = side == 0 ? missing / 2 + (missing & width & 1) : side > 0 ? missing : 0;
  std::string out = repeat(fill, left) + self.text() + repeat(fill, missing - left);
  machine.charge(int64_t(out.size()));
  return Value(std::move(out));
}

Value zero_filled(Machine&, const Value& self, Arguments& args) {
  const Parameters p("zfill", args, {"width"}, 1);
  const std::string& text = self.text();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  return Value(text.substr(0, sign) + repeat("0", p.integer(0, 0) - character_count(text)) +
               text.substr(sign));
}

template <class Test>
Value all_are(const char* name, const Value& self, Arguments& args, Test test) {
  const Parameters none(name, args, {});
  for (const std::string_view c : Characters(self.text()))
    if (!test(c)) return false;
  return !self.text().empty();
}

// As Python's islower() and isupper(): some character has case, and all that have are like it.
Value cased(const char* name, const Value& self, Arguments& args, bool upper_case) {
  const Parameters none(name, args, {});
  bool any = false;
  for (const std::string_view c : Characters(self.text())) {
    if (upper_case ? is_lower(c) : is_upper(c)) return false;
    any = any || (upper_case ? is_upper(c) : is_lower(c));
  }
  return any;
}

Value without_affix(const char* name, const Value& self, Arguments& args, bool prefix) {
  const Parameters p(name, args, {prefix ? "prefix" : "suffix"}, 1);
  std::string_view text = self.text();
  if (prefix && text.starts_with(p.text(0))) text.remove_prefix(p.text(0).size());
  if (!prefix && text.ends_with(p.text(0))) text.remove_suffix(p.text(0).size());
  return Value(text);
}

// str.format() with fields {}, {0} and {name}, without conversions and formats.
Value formatted(Machine& machine, const Value& self, Arguments& args) {
  const std::string& form = self.text();
  std::string out;
  size_t automatic = 0;
  for (size_t at = 0; at < form.size(); ++at) {
    const char c = form[at];
    if ((c == '{' || c == '}') && at + 1 < form.size() && form[at + 1] == c) {
      out += c, ++at;
    } else if (c == '{') {
      const size_t end = form.find('}', at);
      if (end == std::string::npos) fail("format: a field of the text has no end");
      const std::string field = form.substr(at + 1, end - at - 1);
      if (field.find_first_of("!:.[{") != std::string::npos)
        fail("format: the field {{{}}} is not supported; only {{}}, {{0}} and {{name}} are", field);
      const bool number = !field.empty() && field.size() < 6 &&
                          field.find_first_not_of("0123456789") == std::string::npos;
      if (field.empty() || number) {
        const size_t i = number ? size_t(std::stoi(field)) : automatic++;
        if (i >= args.positional.size()) fail("format has no argument {}", i);
        out += to_text(args.positional[i]);
      } else {
        const auto named =
            std::ranges::find(args.named, field, &std::pair<std::string, Value>::first);
        if (named == args.named.end()) fail("format has no argument {}", field);
        out += to_text(named->second);
      }
      at = end;
    } else if (c == '}') {
      fail("format: the text has a single }}");
    } else {
      out += c;
    }
    if (int64_t(out.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
  }
  machine.charge(int64_t(out.size()));
  return Value(std::move(out));
}

const Methods& text_methods() {
  static const Methods methods = {
      {"strip",
       [](Machine&, const Value& s, Arguments& a) { return stripped("strip", s, a, true, true); }},
      {"lstrip", [](Machine&, const Value& s,
                    Arguments& a) { return stripped("lstrip", s, a, true, false); }},
      {"rstrip", [](Machine&, const Value& s,
                    Arguments& a) { return stripped("rstrip", s, a, false, true); }},
      {"split",
       [](Machine& m, const Value& s, Arguments& a) { return split_by("split", m, s, a, false); }},
      {"rsplit",
       [](Machine& m, const Value& s, Arguments& a) { return split_by("rsplit", m, s, a, true); }},
      {"splitlines",
       [](Machine&, const Value& s, Arguments& a) {
         const Parameters p("splitlines", a, {"keepends"});
         return list_of(split_lines(s.text(), p.boolean(0, false)));
       }},
      {"startswith",
       [](Machine&, const Value& s, Arguments& a) { return tests_end("startswith", s, a, true); }},
      {"endswith",
       [](Machine&, const Value& s, Arguments& a) { return tests_end("endswith", s, a, false); }},
      {"find",
       [](Machine&, const Value& s, Arguments& a) { return Value(found_at("find", s, a, false)); }},
      {"rfind",
       [](Machine&, const Value& s, Arguments& a) { return Value(found_at("rfind", s, a, true)); }},
      {"index",
       [](Machine&, const Value& s, Arguments& a) { return index_of("index", s, a, false); }},
      {"rindex",
       [](Machine&, const Value& s, Arguments& a) { return index_of("rindex", s, a, true); }},
      {"count", count_in},
      {"join", join_texts},
      {"replace", replaced},
      {"format", formatted},
      {"partition", [](Machine&, const Value& s,
                       Arguments& a) { return partitioned("partition", s, a, false); }},
      {"rpartition", [](Machine&, const Value& s,
                        Arguments& a) { return partitioned("rpartition", s, a, true); }},
      {"center",
       [](Machine& m, const Value& s, Arguments& a) { return filled("center", m, s, a, 0); }},
      {"rjust",
       [](Machine& m, const Value& s, Arguments& a) { return filled("rjust", m, s, a, 1); }},
      {"ljust",
       [](Machine& m, const Value& s, Arguments& a) { return filled("ljust", m, s, a, -1); }},
      {"zfill", zero_filled},
  };
  return methods;
}

// Methods that test a text, or change its case.
const Methods& case_methods() {
  static const Methods methods = {
      {"removeprefix", [](Machine&, const Value& s,
                          Arguments& a) { return without_affix("removeprefix", s, a, true); }},
      {"removesuffix", [](Machine&, const Value& s,
                          Arguments& a) { return without_affix("removesuffix", s, a, false); }},
      {"isupper",
       [](Machine&, const Value& s, Arguments& a) { return cased("isupper", s, a, true); }},
      {"islower",
       [](Machine&, const Value& s, Arguments& a) { return cased("islower", s, a, false); }},
      {"isspace",
       [](Machine&, const Value& s, Arguments& a) { return all_are("isspace", s, a, is_space); }},
      {"isalpha",
       [](Machine&, const Value& s, Arguments& a) { return all_are("isalpha", s, a, is_letter); }},
      {"isdecimal", [](Machine&, const Value& s,
                       Arguments& a) { return all_are("isdecimal", s, a, is_decimal); }},
      {"isdigit",
       [](Machine&, const Value& s, Arguments& a) { return all_are("isdigit", s, a, is_digit); }},
      {"isnumeric", [](Machine&, const Value& s,
                       Arguments& a) { return all_are("isnumeric", s, a, is_numeric); }},
      {"isalnum",
       [](Machine&, const Value& s, Arguments& a) {
         return all_are("isalnum", s, a,
                        [](std::string_view c) { return is_letter(c) || is_numeric(c); });
       }},
      {"isascii",
       [](Machine&, const Value& s, Arguments& a) {
         const Parameters none("isascii", a, {});
         return Value(std::ranges::all_of(s.text(), [](char c) { return uint8_t(c) < 128; }));
       }},
      {"upper", [](Machine&, const Value& s,
                   Arguments& a) { return Parameters("upper", a, {}), Value(upper(s.text())); }},
      {"lower", [](Machine&, const Value& s,
                   Arguments& a) { return Parameters("lower", a, {}), Value(lower(s.text())); }},
      {"title", [](Machine&, const Value& s,
                   Arguments& a) { return Parameters("title", a, {}), Value(title(s.text())); }},
      {"capitalize",
       [](Machine&, const Value& s, Arguments& a) {
         return Parameters("capitalize", a, {}), Value(capitalize(s.text()));
       }},
      {"swapcase",
       [](Machine&, const Value& s, Arguments& a) {
         return Parameters("swapcase", a, {}), Value(swap_case(s.text()));
       }},
  };
  return methods;
}

const Methods& dict_methods() {
  static const Methods methods = {
      {"get",
       [](Machine&, const Value& s, Arguments& a) {
         const Parameters p("get", a, {"key", "default"}, 1);
         key_of(p[0]);  // throws as Python does
         const Value* found = s.dict().find(p[0]);
         return found ? *found : p.has(1) ? p[1] : Value();
       }},
      {"keys",
       [](Machine& m, const Value& s, Arguments& a) {
         const Parameters none("keys", a, {});
         m.charge(s.weight());
         return Value::view(elements_of(s), "dict_keys");
       }},
      {"values",
       [](Machine& m, const Value& s, Arguments& a) {
         const Parameters none("values", a, {});
         m.charge(s.weight());
         std::vector<Value> values;
         for (const auto& entry : s.dict().entries) values.push_back(entry.second);
         return Value::view(std::move(values), "dict_values");
       }},
      {"items",
       [](Machine& m, const Value& s, Arguments& a) {
         const Parameters none("items", a, {});
         m.charge(s.weight());
         std::vector<Value> values;
         for (const auto& [key, value] : s.dict().entries)
           values.push_back(Value::tuple({key, value}));
         return Value::view(std::move(values), "dict_items");
       }},
      {"copy", [](Machine&, const Value& s, Arguments& a) { return Parameters("copy", a, {}), s; }},
  };
  return methods;
}

const Methods& list_methods() {
  static const Methods methods = {
      {"index",
       [](Machine&, const Value& s, Arguments& a) {
         const Parameters p("index", a, {"value"}, 1);
         const auto& values = s.items()->values;
         for (size_t i = 0; i < values.size(); ++i)
           if (equal(values[i], p[0])) return Value(int64_t(i));
         fail("index: {} is not in the list", to_repr(p[0]));
       }},
      {"count",
       [](Machine&, const Value& s, Arguments& a) {
         const Parameters p("count", a, {"value"}, 1);
         return Value(int64_t(std::ranges::count_if(
             s.items()->values, [&](const Value& v) { return equal(v, p[0]); })));
       }},
      {"copy", [](Machine&, const Value& s, Arguments& a) { return Parameters("copy", a, {}), s; }},
  };
  return methods;
}

const Methods& loop_methods() {
  static const Methods methods = {
      {"cycle",
       [](Machine&, const Value& s, Arguments& a) {
         if (a.positional.empty()) fail("loop.cycle needs values");
         return a.positional[size_t(s.loop().index0) % a.positional.size()];
       }},
      {"changed",
       [](Machine&, const Value& s, Arguments& a) {
         const Value now = Value::tuple(a.positional);
         const bool changed = !s.loop().changed || !equal(*s.loop().changed, now);
         if (changed) s.loop().changed = now;
         return Value(changed);
       }},
  };
  return methods;
}

// Python's other attributes of these types. The sandbox of transformers forbids those that change a
// value; the rest is not supported.
const std::vector<std::string_view>& changing(Kind kind) {
  static const std::vector<std::string_view> of_list = {"append", "clear", "pop",    "reverse",
                                                        "insert", "sort",  "extend", "remove"};
  static const std::vector<std::string_view> of_dict = {"clear", "pop", "popitem", "setdefault",
                                                        "update"};
  static const std::vector<std::string_view> none;
  return kind == Kind::list ? of_list : kind == Kind::dict ? of_dict : none;
}
constexpr std::string_view kOfNumbers[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};
constexpr std::string_view kOtherOfText[] = {"casefold",   "encode",       "expandtabs",
                                             "format_map", "isidentifier", "isprintable",
                                             "istitle",    "maketrans",    "translate"};

}  // namespace

std::optional<Value> method(const Value& self, const std::string& name) {
  static const Methods none;
  const Kind kind = self.kind();
  const Methods& methods = kind == Kind::text                          ? text_methods()
                           : kind == Kind::dict                        ? dict_methods()
                           : kind == Kind::list || kind == Kind::tuple ? list_methods()
                           : kind == Kind::loop                        ? loop_methods()
                                                                       : none;
  if (kind == Kind::tuple && name == "copy") return std::nullopt;
  auto found = methods.find(name);
  if (found == methods.end() && kind == Kind::text) {
    found = case_methods().find(name);
    if (found == case_methods().end()) found = methods.end();
  }
  if (found != methods.end())
    return Value(std::make_shared<const Function>(Function{name, found->second, self}));
  if (std::ranges::find(changing(kind), name) != changing(kind).end())
    return Value::undefined(
        fmt::format("templates cannot change a {}: {}() is forbidden", type_name(self), name));
  if ((kind == Kind::text && std::ranges::find(kOtherOfText, name) != std::end(kOtherOfText)) ||
      (kind == Kind::dict && name == "fromkeys") ||
      (self.is_number() && std::ranges::find(kOfNumbers, name) != std::end(kOfNumbers)))
    fail("the attribute {} of a value of type {} is not supported", name, type_name(self));
  if (kind == Kind::function && name == "name" && self.function().closure)
    return self.function().name;
  return std::nullopt;
}

}  // namespace mtrain::data::jinja
