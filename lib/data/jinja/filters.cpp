// Jinja's filters.
#include <algorithm>
#include <map>

#include "data/jinja/function.h"
#include "data/jinja/number_filters.h"
#include "data/jinja/text.h"

namespace mtrain::data::jinja {
namespace {

// A filter gets the value as `self`.
using Filters = std::map<std::string_view, Native>;

std::vector<Value> read_all(Machine& machine, const Value& value) {
  std::vector<Value> values = elements_of(value);
  machine.charge(int64_t(values.size() * sizeof(Value)));
  return values;
}

Value made(Machine& machine, std::string text) {
  machine.charge(int64_t(text.size()));
  return Value(std::move(text));
}

// Reads `attribute` of filters: names and numbers, joined by dots.
Value attribute_path(const Value& object, const Value& path) {
  if (!path.is(Kind::text)) return item(object, path);
  Value at = object;
  const std::string dot = ".";
  for (const std::string& part : split(path.text(), &dot, -1, false)) {
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    at = item(at, number ? Value(int64_t(std::stoi(part))) : Value(part));
  }
  return at;
}

Value without_case(const Value& value) {
  return value.is(Kind::text) ? Value(lower(value.text())) : value;
}

// Refuses arguments of a filter that has none.
const Value& alone(const char* name, const Value& self, Arguments& args) {
  const Parameters none(name, args, {});
  return self;
}

Value filter_default(Machine&, const Value& self, Arguments& args) {
  const Parameters p("default", args, {"default_value", "boolean"});
  if (!self.is(Kind::undefined) && !(p.boolean(1, false) && !truth(self))) return self;
  return p.has(0) ? p[0] : Value("");
}

Value filter_trim(Machine&, const Value& self, Arguments& args) {
  const Parameters p("trim", args, {"chars"});
  return Value(strip(to_text(self), p.optional_text(0), true, true));
}

Value filter_tojson(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = p.boolean(0, false), .sort_keys = p.boolean(3, false)};
  if (p.is_set(1)) {
    style.item_separator = ",";
    style.indent = p[1].is(Kind::text) ? p[1].text() : repeat(" ", p.integer(1, 0));
    if (style.indent->size() > 100)
      fail("tojson: an indent of {} characters", style.indent->size());
  }
  if (p.is_set(2)) {
    const std::vector<Value> both = elements_of(p[2]);
    if (both.size() != 2 || !both[0].is(Kind::text) || !both[1].is(Kind::text))
      fail("tojson: separators are two texts");
    style.item_separator = both[0].text(), style.key_separator = both[1].text();
  }
  return made(machine, to_json(self, style));
}

Value filter_join(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("join", args, {"d", "attribute"});
  const std::string between = p.has(0) ? to_text(p[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& v : read_all(machine, self)) {
    if (!std::exchange(first, false)) out += between;
    out += to_text(p.is_set(1) ? attribute_path(v, p[1]) : v);
    if (int64_t(out.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
  }
  return made(machine, std::move(out));
}

Value filter_replace(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("replace", args, {"old", "new", "count"}, 2);
  return made(machine, replace(to_text(self), to_text(p[0]), to_text(p[1]), p.integer(2, -1)));
}

Value filter_indent(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("indent", args, {"width", "first", "blank"});
  if (self.is(Kind::undefined)) fail("{}", self.why_undefined());
  if (!self.is(Kind::text)) fail("indent needs a text, not a value of type {}", type_name(self));
  const std::string by =
      p.is_set(0) && p[0].is(Kind::text) ? p[0].text() : repeat(" ", p.integer(0, 4));
  const auto lines = split_lines(self.text() + "\n", false);
  std::string out = p.boolean(1, false) ? by : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (!lines[i].empty() || p.boolean(2, false))) out += by;
    out += lines[i];
    if (int64_t(out.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
  }
  return made(machine, std::move(out));
}

// As Jinja's title: words begin after spaces, hyphens and opening brackets.
Value filter_title(Machine& machine, const Value& self, Arguments& args) {
  const Parameters none("title", args, {});
  const std::string text = to_text(self);
  std::string out, word;
  const auto flush = [&] {
    const size_t first = word.empty() ? 0 : (*Characters(word).begin()).size();
    out += upper(word.substr(0, first)) + lower(word.substr(first));
    word.clear();
  };
  bool between = true;
  for (const std::string_view c : Characters(text)) {
    const bool separates = is_space(c) || c == "-" || c == "(" || c == "{" || c == "[" || c == "<";
    if (separates != between) flush();
    between = separates;
    word += c;
  }
  flush();
  return made(machine, std::move(out));
}

Value filter_first(Machine&, const Value& self, Arguments& args) {
  const Parameters none("first", args, {});
  if (self.is(Kind::iteration)) {
    Iteration& it = self.iteration();
    if (it.at < it.items->values.size()) return it.items->values[it.at++];
  } else if (const std::vector<Value> all = elements_of(self); !all.empty()) {
    return all.front();
  }
  return Value::undefined("there is no first item: the sequence is empty");
}

Value filter_last(Machine&, const Value& self, Arguments& args) {
  const Parameters none("last", args, {});
  if (self.is(Kind::iteration)) fail("last does not read a generator; apply the filter list first");
  if (self.is(Kind::undefined)) fail("{}", self.why_undefined());
  const std::vector<Value> all = elements_of(self);
  return all.empty() ? Value::undefined("there is no last item: the sequence is empty")
                     : all.back();
}

Value filter_reverse(Machine& machine, const Value& self, Arguments& args) {
  const Parameters none("reverse", args, {});
  if (self.is(Kind::undefined)) fail("{}", self.why_undefined());
  std::vector<Value> all = read_all(machine, self);
  std::ranges::reverse(all);
  if (self.is(Kind::text)) {
    std::string out;
    for (const Value& c : all) out += c.text();
    return Value(std::move(out));
  }
  return self.is(Kind::iteration) ? Value::list(std::move(all)) : Value::iteration(std::move(all));
}

// Sorts by keys; equal ones keep their order, also in reverse, as in Python.
void sort_by(std::vector<Value>& values, std::vector<Value> keys, bool reverse) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return reverse ? compare(keys[b], keys[a]) < 0 : compare(keys[a], keys[b]) < 0;
  });
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(values[i]);
  values = std::move(sorted);
}

Value filter_sort(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> all = read_all(machine, self), keys;
  const bool exact = p.boolean(1, false);
  std::vector<Value> paths;
  const std::string comma = ",";
  if (p.is_set(2) && p[2].is(Kind::text))
    for (std::string& path : split(p[2].text(), &comma, -1, false))
      paths.emplace_back(std::move(path));
  else if (p.is_set(2))
    paths.push_back(p[2]);
  for (const Value& v : all) {
    std::vector<Value> key;
    for (const Value& path : paths) key.push_back(attribute_path(v, path));
    if (paths.empty()) key.push_back(v);
    if (!exact)
      for (Value& part : key) part = without_case(part);
    keys.push_back(Value::tuple(std::move(key)));
  }
  sort_by(all, std::move(keys), p.boolean(0, false));
  return Value::list(std::move(all));
}

Value filter_dictsort(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (!self.is(Kind::dict))
    fail("dictsort needs a dictionary, not a value of type {}", type_name(self));
  const std::string by = p.has(1) ? p.text(1) : "key";
  if (by != "key" && by != "value") fail("dictsort sorts by \"key\" or \"value\", not \"{}\"", by);
  std::vector<Value> pairs, keys;
  for (const auto& [key, value] : self.dict().entries) {
    pairs.push_back(Value::tuple({key, value}));
    const Value& chosen = by == "key" ? key : value;
    keys.push_back(p.boolean(0, false) ? chosen : without_case(chosen));
  }
  machine.charge(int64_t(2 * pairs.size() * sizeof(Value)));
  sort_by(pairs, std::move(keys), p.boolean(2, false));
  return Value::list(std::move(pairs));
}

Value filter_unique(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("unique", args, {"case_sensitive", "attribute"});
  std::map<std::string, bool> seen;
  std::vector<Value> out;
  for (const Value& v : read_all(machine, self)) {
    const Value key = p.is_set(1) ? attribute_path(v, p[1]) : v;
    if (seen.emplace(key_of(p.boolean(0, false) ? key : without_case(key)), true).second)
      out.push_back(v);
  }
  return Value::iteration(std::move(out));
}

Value extreme(Machine& machine, const Value& self, Arguments& args, const char* name, int sign) {
  const Parameters p(name, args, {"case_sensitive", "attribute"});
  std::optional<Value> best, best_key;
  for (const Value& v : read_all(machine, self)) {
    Value key = p.is_set(1) ? attribute_path(v, p[1]) : v;
    if (!p.boolean(0, false)) key = without_case(key);
    if (best && sign * compare(key, *best_key) <= 0) continue;
    best = v, best_key = std::move(key);
  }
  return best ? *best : Value::undefined("there is no item: the sequence is empty");
}

Value filter_sum(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("sum", args, {"attribute", "start"});
  Value total = p.has(1) ? p[1] : Value(0);
  if (total.is(Kind::text)) fail("sum does not add texts; use the filter join");
  for (const Value& v : read_all(machine, self))
    total = arithmetic(machine, "+", total, p.is_set(0) ? attribute_path(v, p[0]) : v);
  return total;
}

Value filter_map(Machine& machine, const Value& self, Arguments& args) {
  if (!truth(self)) return Value::iteration({});
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Parameters p("map", args, {"attribute", "default"});
    if (!p.has(0)) fail("map needs the name of a filter or an attribute");
    for (const Value& v : read_all(machine, self)) {
      Value at = attribute_path(v, p[0]);
      if (at.is(Kind::undefined) && p.is_set(1)) at = p[1];
      out.push_back(std::move(at));
    }
    return Value::iteration(std::move(out));
  }
  if (!args.positional[0].is(Kind::text)) fail("map needs the name of a filter");
  const std::string name = args.positional[0].text();
  args.positional.erase(args.positional.begin());
  for (const Value& v : read_all(machine, self)) {
    Arguments own = args;
    out.push_back(apply_filter(machine, name, v, own));
  }
  return Value::iteration(std::move(out));
}

Value chosen(Machine& machine, const Value& self, Arguments& args, bool keep, bool by_attribute) {
  if (!truth(self)) return Value::iteration({});
  if (by_attribute && args.positional.empty()) fail("the filter needs the name of an attribute");
  std::vector<Value> out;
  const size_t off = by_attribute;
  Arguments rest{{args.positional.begin() +
                      std::min<int64_t>(int64_t(off) + 1, int64_t(args.positional.size())),
                  args.positional.end()},
                 args.named};
  for (const Value& v : read_all(machine, self)) {
    const Value tested = by_attribute ? attribute_path(v, args.positional[0]) : v;
    bool passes = false;
    if (args.positional.size() > off) {
      if (!args.positional[off].is(Kind::text)) fail("the filter needs the name of a test");
      Arguments own = rest;
      passes = apply_test(machine, args.positional[off].text(), tested, own);
    } else {
      passes = truth(tested);
    }
    if (passes == keep) out.push_back(v);
  }
  return Value::iteration(std::move(out));
}

Value filter_items(Machine&, const Value& self, Arguments& args) {
  const Parameters none("items", args, {});
  if (self.is(Kind::undefined)) return Value::iteration({});
  if (!self.is(Kind::dict))
    fail("items needs a dictionary, not a value of type {}", type_name(self));
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict().entries) pairs.push_back(Value::tuple({key, value}));
  return Value::iteration(std::move(pairs));
}

Value filter_attr(Machine&, const Value& self, Arguments& args) {
  const Parameters p("attr", args, {"name"}, 1);
  if (self.is(Kind::space)) return attribute(self, p.text(0));
  if (auto found = method(self, p.text(0))) return *found;
  return Value::undefined(
      fmt::format("a value of type {} has no attribute {}", type_name(self), p.text(0)));
}

Value filter_batch(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t size = p.integer(0, 0);
  std::vector<Value> out, row;
  for (Value& v : read_all(machine, self)) {
    if (int64_t(row.size()) == size) out.push_back(Value::list(std::exchange(row, {})));
    row.push_back(std::move(v));
  }
  if (!row.empty()) {
    if (p.is_set(1)) {
      if (size > kLargestValue / int64_t(sizeof(Value))) fail("batch of {} items", size);
      machine.charge(size * int64_t(sizeof(Value)));
      while (int64_t(row.size()) < size) row.push_back(p[1]);
    }
    out.push_back(Value::list(std::move(row)));
  }
  return Value::iteration(std::move(out));
}

Value filter_truncate(Machine&, const Value& self, Arguments& args) {
  const Parameters p("truncate", args, {"length", "killwords", "end", "leeway"});
  if (!self.is(Kind::text)) fail("truncate needs a text, not a value of type {}", type_name(self));
  const int64_t length = p.integer(0, 255), leeway = p.integer(3, 5);
  const std::string end = p.has(2) ? p.text(2) : "...";
  if (length < character_count(end) || leeway < 0) fail("truncate to {} characters", length);
  if (character_count(self.text()) <= length + leeway) return self;
  std::string text =
      self.text().substr(0, byte_of_character(self.text(), length - character_count(end)));
  if (!p.boolean(1, false)) text.resize(std::min(text.rfind(' '), text.size()));
  return Value(text + end);
}

Value filter_wordcount(Machine&, const Value& self, Arguments& args) {
  const Parameters none("wordcount", args, {});
  int64_t words = 0;
  bool inside = false;
  const std::string text = to_text(self);
  for (const std::string_view c : Characters(text)) {
    const bool word = c == "_" || is_letter(c) || is_numeric(c);
    words += word && !inside;
    inside = word;
  }
  return words;
}

Value filter_groupby(Machine& machine, const Value& self, Arguments& args) {
  const Parameters p("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  std::vector<Value> all = read_all(machine, self), keys;
  const auto key = [&](const Value& v, bool folded) {
    Value k = attribute_path(v, p[0]);
    if (k.is(Kind::undefined) && p.is_set(1)) k = p[1];
    return folded && !p.boolean(2, false) ? without_case(k) : k;
  };
  for (const Value& v : all) keys.push_back(key(v, true));
  sort_by(all, std::move(keys), false);
  std::vector<Value> groups, group;
  for (size_t i = 0; i < all.size(); ++i) {
    group.push_back(all[i]);
    if (i + 1 < all.size() && equal(key(all[i], true), key(all[i + 1], true))) continue;
    const Value name = key(group[0], false);
    groups.push_back(Value::tuple({name, Value::list(std::exchange(group, {}))}));
  }
  return Value::list(std::move(groups));
}

const Filters& text_filters() {
  static const Filters filters = {
      {"trim", filter_trim},
      {"tojson", filter_tojson},
      {"join", filter_join},
      {"replace", filter_replace},
      {"indent", filter_indent},
      {"title", filter_title},
      {"truncate", filter_truncate},
      {"wordcount", filter_wordcount},
      {"upper", [](Machine& m, const Value& s,
                   Arguments& a) { return made(m, upper(to_text(alone("upper", s, a)))); }},
      {"lower", [](Machine& m, const Value& s,
                   Arguments& a) { return made(m, lower(to_text(alone("lower", s, a)))); }},
      {"capitalize",
       [](Machine& m, const Value& s, Arguments& a) {
         return made(m, capitalize(to_text(alone("capitalize", s, a))));
       }},
      {"string",
       [](Machine& m, const Value& s, Arguments& a) {
         return alone("string", s, a).is(Kind::text) ? s : made(m, to_text(s));
       }},
      {"safe", [](Machine&, const Value& s,
                  Arguments& a) { return Value(to_text(alone("safe", s, a)), true); }},
      {"escape",
       [](Machine&, const Value& s, Arguments& a) {
         return alone("escape", s, a).is_markup() ? s : Value(escape_html(to_text(s)), true);
       }},
      {"forceescape",
       [](Machine&, const Value& s, Arguments& a) {
         return Value(escape_html(to_text(alone("forceescape", s, a))), true);
       }},
      {"center",
       [](Machine& m, const Value& s, Arguments& a) {
         const Parameters p("center", a, {"width"});
         return m.call(*method(Value(to_text(s)), "center"), {{Value(p.integer(0, 80))}, {}});
       }},
      {"format",
       [](Machine& m, const Value& s, Arguments& a) {
         if (a.named.empty()) return format_percent(m, to_text(s), Value::tuple(a.positional));
         std::vector<std::pair<Value, Value>> entries;
         for (auto& [key, value] : a.named) entries.emplace_back(key, value);
         return format_percent(m, to_text(s), make_dict(std::move(entries)));
       }},
  };
  return filters;
}

const Filters& other_filters() {
  static const Filters filters = {
      {"default", filter_default},
      {"length", [](Machine&, const Value& s,
                    Arguments& a) { return Value(length_of(alone("length", s, a))); }},
      {"list", [](Machine& m, const Value& s,
                  Arguments& a) { return Value::list(read_all(m, alone("list", s, a))); }},
      {"first", filter_first},
      {"last", filter_last},
      {"reverse", filter_reverse},
      {"sort", filter_sort},
      {"dictsort", filter_dictsort},
      {"unique", filter_unique},
      {"min", [](Machine& m, const Value& s, Arguments& a) { return extreme(m, s, a, "min", -1); }},
      {"max", [](Machine& m, const Value& s, Arguments& a) { return extreme(m, s, a, "max", 1); }},
      {"sum", filter_sum},
      {"map", filter_map},
      {"select",
       [](Machine& m, const Value& s, Arguments& a) { return chosen(m, s, a, true, false); }},
      {"reject",
       [](Machine& m, const Value& s, Arguments& a) { return chosen(m, s, a, false, false); }},
      {"selectattr",
       [](Machine& m, const Value& s, Arguments& a) { return chosen(m, s, a, true, true); }},
      {"rejectattr",
       [](Machine& m, const Value& s, Arguments& a) { return chosen(m, s, a, false, true); }},
      {"items", filter_items},
      {"int", filter_int},
      {"float", filter_float},
      {"round", filter_round},
      {"abs", filter_abs},
      {"attr", filter_attr},
      {"batch", filter_batch},
      {"groupby", filter_groupby},
  };
  return filters;
}

}  // namespace

namespace {

Native filter_of(const std::string& name) {
  static const std::map<std::string_view, std::string_view> aliases = {
      {"d", "default"}, {"e", "escape"}, {"count", "length"}};
  const auto alias = aliases.find(name);
  const std::string_view known = alias == aliases.end() ? std::string_view(name) : alias->second;
  for (const Filters* filters : {&text_filters(), &other_filters()})
    if (const auto found = filters->find(known); found != filters->end()) return found->second;
  return nullptr;
}

constexpr std::string_view kUnsupported[] = {"filesizeformat", "pprint",    "random",
                                             "slice",          "striptags", "urlencode",
                                             "urlize",         "wordwrap",  "xmlattr"};

}  // namespace

bool is_filter(const std::string& name) {
  return filter_of(name) || std::ranges::find(kUnsupported, name) != std::end(kUnsupported);
}

Value apply_filter(Machine& machine, const std::string& name, const Value& value,
                   Arguments& arguments) {
  if (const Native filter = filter_of(name)) return filter(machine, value, arguments);
  if (is_filter(name)) fail("the filter {} is not supported", name);
  fail("there is no filter {}", name);
}

}  // namespace mtrain::data::jinja
