#include "data/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "data/jinja/function.h"
#include "data/jinja/text.h"

namespace mtrain::data::jinja {
namespace {

void check_size(int depth, int64_t weight) {
  if (depth > kDeepestValue) fail("a value has more than {} levels", kDeepestValue);
  if (weight > kLargestValue) fail("a value takes more than {} bytes", kLargestValue);
}

std::shared_ptr<const Items> make_items(std::vector<Value> values, std::string label = "") {
  auto items = std::make_shared<Items>();
  for (const Value& value : values) {
    items->depth = std::max(items->depth, 1 + value.depth());
    items->weight += value.weight();
    check_size(items->depth, items->weight);
  }
  items->values = std::move(values);
  items->label = std::move(label);
  return items;
}

constexpr size_t kMostCharacters = size_t{1} << 20;  // each is a value of its own
constexpr size_t kIndexedEntries = 8;                // dictionaries with more have an index

}  // namespace

Value Value::undefined(std::string why) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return value;
}

Value Value::list(std::vector<Value> values) {
  Value value;
  value.data_ = List{make_items(std::move(values))};
  return value;
}

Value Value::tuple(std::vector<Value> values) {
  Value value;
  value.data_ = Tuple{make_items(std::move(values))};
  return value;
}

Value Value::range(std::vector<Value> values, std::string label) {
  Value value;
  value.data_ = Range{make_items(std::move(values), std::move(label))};
  return value;
}

Value Value::view(std::vector<Value> values, std::string type) {
  Value value;
  value.data_ = View{make_items(std::move(values), std::move(type))};
  return value;
}

Value Value::iteration(std::vector<Value> values) {
  Value value;
  value.data_ = std::make_shared<Iteration>(Iteration{make_items(std::move(values))});
  return value;
}

int64_t Value::integer() const {
  return is(Kind::boolean) ? int64_t(boolean()) : std::get<int64_t>(data_);
}

double Value::real() const { return is(Kind::real) ? std::get<double>(data_) : double(integer()); }

std::shared_ptr<const Items> Value::shared_items() const {
  switch (kind()) {
    case Kind::list: return std::get<List>(data_).items;
    case Kind::tuple: return std::get<Tuple>(data_).items;
    case Kind::range: return std::get<Range>(data_).items;
    case Kind::view: return std::get<View>(data_).items;
    default: return nullptr;
  }
}

const Items* Value::items() const { return shared_items().get(); }

bool Value::same(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::undefined:
      return std::get<Undefined>(data_).why == std::get<Undefined>(other.data_).why;
    case Kind::none: return true;
    case Kind::boolean: return boolean() == other.boolean();
    case Kind::integer: return integer() == other.integer() && std::abs(integer()) <= 256;
    case Kind::real: return false;
    case Kind::text: return std::get<Text>(data_).bytes == std::get<Text>(other.data_).bytes;
    case Kind::iteration: return &iteration() == &other.iteration();
    case Kind::dict: return &dict() == &other.dict();
    case Kind::space: return &space() == &other.space();
    case Kind::loop: return &loop() == &other.loop();
    case Kind::function: return &function() == &other.function();
    default: return items() == other.items();
  }
}

int Value::depth() const {
  if (const Items* list = items()) return list->depth;
  if (is(Kind::dict)) return dict().depth;
  if (is(Kind::iteration)) return iteration().items->depth;
  return is(Kind::function) && function().self ? 1 + function().self->depth() : 0;
}

int64_t Value::weight() const {
  constexpr int64_t kOwn = sizeof(Value);
  if (is(Kind::text)) return kOwn + int64_t(text().size());
  if (const Items* list = items()) return kOwn + list->weight;
  if (is(Kind::dict)) return kOwn + dict().weight;
  return is(Kind::iteration) ? kOwn + iteration().items->weight : kOwn;
}

const Value* Dict::find(const Value& key) const {
  if (key.is(Kind::text)) return find(std::string_view(key.text()));
  const std::string sought = key_of(key);
  for (const auto& [name, value] : entries)
    if (key_of(name) == sought) return &value;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (index.empty()) {
    for (const auto& [name, value] : entries)
      if (name.is(Kind::text) && name.text() == key) return &value;
    return nullptr;
  }
  const std::string sought = "t" + std::string(key);
  const auto at =
      std::ranges::lower_bound(index, sought, {}, &std::pair<std::string, uint32_t>::first);
  return at != index.end() && at->first == sought ? &entries[at->second].second : nullptr;
}

Value make_dict(std::vector<std::pair<Value, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  std::vector<std::pair<std::string, uint32_t>> keys;
  for (uint32_t i = 0; i < entries.size(); ++i) keys.emplace_back(key_of(entries[i].first), i);
  std::ranges::sort(keys);
  std::vector<bool> drop(entries.size());
  for (size_t i = keys.size(); i-- > 1;)
    if (keys[i].first == keys[i - 1].first) {
      entries[keys[i - 1].second].second = entries[keys[i].second].second;
      drop[keys[i].second] = true;
    }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (drop[i]) continue;
    dict->depth =
        std::max(dict->depth, 1 + std::max(entries[i].first.depth(), entries[i].second.depth()));
    dict->weight += entries[i].first.weight() + entries[i].second.weight();
    check_size(dict->depth, dict->weight);
    dict->entries.push_back(std::move(entries[i]));
  }
  if (dict->entries.size() > kIndexedEntries) {
    for (uint32_t i = 0; i < dict->entries.size(); ++i)
      dict->index.emplace_back(key_of(dict->entries[i].first), i);
    std::ranges::sort(dict->index);
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value* Namespace::find(std::string_view name) {
  for (auto& [key, value] : members)
    if (key == name) return &value;
  return nullptr;
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean: return value.boolean();
    case Kind::integer: return value.integer() != 0;
    case Kind::real: return value.real() != 0;
    case Kind::text: return !value.text().empty();
    case Kind::dict: return !value.dict().entries.empty();
    case Kind::iteration:
    case Kind::space:
    case Kind::function: return true;
    case Kind::loop: return length_of(value) > 0;
    default: return !value.items()->values.empty();
  }
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "None";
    case Kind::boolean: return "bool";
    case Kind::integer: return "int";
    case Kind::real: return "float";
    case Kind::text: return "str";
    case Kind::list: return "list";
    case Kind::tuple: return "tuple";
    case Kind::range: return "range";
    case Kind::view: return value.items()->label;
    case Kind::iteration: return "generator";
    case Kind::dict: return "dict";
    case Kind::space: return "namespace";
    case Kind::loop: return "loop";
    case Kind::function: return "function";
  }
  throw BugError("a kind of value");
}

std::string real_to_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string_view form(digits, size_t(end.ptr - digits));
  const size_t e = form.find('e');
  const int exponent = std::stoi(std::string(form.substr(e + 1)));
  if (exponent < -4 || exponent >= 16)
    return fmt::format("{}e{}{:02}", form.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  const auto fixed = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  std::string text(digits, fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string key_of(const Value& value) {
  switch (value.kind()) {
    case Kind::text: return "t" + value.text();
    case Kind::none: return "0";
    case Kind::boolean:
    case Kind::integer: return fmt::format("n{}", value.integer());
    case Kind::real: {
      const double real = value.real();
      if (real == std::floor(real) && std::abs(real) < 9e18)
        return fmt::format("n{}", int64_t(real));
      return "n" + real_to_text(real);
    }
    case Kind::undefined: return "u";
    case Kind::tuple: {
      std::string key = "(";
      for (const Value& v : value.items()->values) {
        const std::string part = key_of(v);
        key += fmt::format("{}:{}", part.size(), part);
      }
      return key;
    }
    case Kind::list:
    case Kind::dict:
    case Kind::view: fail("a value of type {} cannot be a key", type_name(value));
    default:
      return fmt::format(
          "p{}", static_cast<const void*>(
                     value.is(Kind::function) ? static_cast<const void*>(&value.function())
                     : value.is(Kind::space)  ? static_cast<const void*>(&value.space())
                     : value.is(Kind::loop)   ? static_cast<const void*>(&value.loop())
                     : value.is(Kind::range)  ? static_cast<const void*>(value.items())
                                              : static_cast<const void*>(&value.iteration())));
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
    return a.real() == b.real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none: return true;
    case Kind::text: return a.text() == b.text();
    case Kind::dict: {
      const Dict &x = a.dict(), &y = b.dict();
      if (x.entries.size() != y.entries.size()) return false;
      return std::ranges::all_of(x.entries, [&](const auto& entry) {
        const Value* other = y.find(entry.first);
        return other && equal(entry.second, *other);
      });
    }
    case Kind::list:
    case Kind::tuple:
    case Kind::range: {
      const auto &x = a.items()->values, &y = b.items()->values;
      return std::ranges::equal(x, y, [](const Value& p, const Value& q) { return equal(p, q); });
    }
    default: return a.same(b);
  }
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral())
      return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.real() < b.real() ? -1 : a.real() > b.real();
  }
  for (const Value* v : {&a, &b})
    if (v->is(Kind::undefined)) fail("{}", v->why_undefined());
  if (a.is(Kind::text) && b.is(Kind::text)) return a.text().compare(b.text());
  if (a.kind() == b.kind() && (a.is(Kind::list) || a.is(Kind::tuple))) {
    const auto &x = a.items()->values, &y = b.items()->values;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i])) return compare(x[i], y[i]);
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  fail("a value of type {} cannot be ordered with one of type {}", type_name(a), type_name(b));
}

int64_t length_of(const Value& value) {
  if (const Items* items = value.items()) return int64_t(items->values.size());
  switch (value.kind()) {
    case Kind::undefined: return 0;
    case Kind::text: return character_count(value.text());
    case Kind::dict: return int64_t(value.dict().entries.size());
    case Kind::loop: return value.loop().length();
    default: fail("a value of type {} has no length", type_name(value));
  }
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
    case Kind::space:
    case Kind::function: return false;
    default: return true;
  }
}

std::vector<Value> elements_of(const Value& value) {
  if (const Items* items = value.items()) return items->values;
  std::vector<Value> out;
  switch (value.kind()) {
    case Kind::undefined: return out;
    case Kind::text:
      if (value.text().size() > kMostCharacters)
        fail("a text of {} bytes is too long to be read by characters", value.text().size());
      for (const std::string_view c : Characters(value.text())) out.emplace_back(c);
      return out;
    case Kind::dict:
      for (const auto& entry : value.dict().entries) out.push_back(entry.first);
      return out;
    case Kind::iteration: {
      Iteration& it = value.iteration();
      out.assign(it.items->values.begin() + int64_t(it.at), it.items->values.end());
      it.at = it.items->values.size();
      return out;
    }
    default: fail("a value of type {} is not iterable", type_name(value));
  }
}

}  // namespace mtrain::data::jinja
