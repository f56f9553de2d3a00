// Python's operators, and how Jinja reads attributes and elements.
#include <algorithm>
#include <cmath>
#include <limits>

#include "data/jinja/function.h"
#include "data/jinja/text.h"

namespace mtrain::data::jinja {
namespace {

[[noreturn]] void no_operator(const std::string& op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b})
    if (v->is(Kind::undefined)) fail("{}", v->why_undefined());
  fail("{} does not join values of the types {} and {}", op, type_name(a), type_name(b));
}

[[noreturn]] void too_large() { fail("an integer does not fit into 64 bits"); }

Value integer_arithmetic(const std::string& op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == "+" && !__builtin_add_overflow(a, b, &out)) return out;
  if (op == "-" && !__builtin_sub_overflow(a, b, &out)) return out;
  if (op == "*" && !__builtin_mul_overflow(a, b, &out)) return out;
  if (op == "//" || op == "%" || op == "/") {
    if (b == 0) fail("division by zero");
    if (op == "/") return double(a) / double(b);
    if (a == std::numeric_limits<int64_t>::min() && b == -1) too_large();
    const int64_t rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);  // Python rounds down
    return op == "%" ? rest + (down ? b : 0) : a / b - down;
  }
  if (op == "**") {
    if (b < 0) {
      if (a == 0) fail("division by zero");
      return std::pow(double(a), double(b));
    }
    if (a == 0 || a == 1) return b == 0 ? 1 : a;
    if (a == -1) return b % 2 ? -1 : 1;
    for (out = 1; b > 0; --b)
      if (__builtin_mul_overflow(out, a, &out)) too_large();
    return out;
  }
  too_large();
}

Value real_arithmetic(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) fail("division by zero");
  if (op == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  return std::floor((a - rest) / b + 0.5);
}

Value repeated(Machine& machine, const Value& value, int64_t times) {
  if (value.is(Kind::text)) {
    Value text(repeat(value.text(), times), value.is_markup());
    machine.charge(int64_t(text.text().size()));
    return text;
  }
  const auto& values = value.items()->values;
  std::vector<Value> out;
  times = values.empty() ? 0 : std::max<int64_t>(times, 0);
  if (times > 0 && value.weight() > kLargestValue / times)
    fail("a value takes more than {} bytes", kLargestValue);
  machine.charge(times * int64_t(values.size() * sizeof(Value)));
  for (int64_t i = 0; i < times; ++i) out.insert(out.end(), values.begin(), values.end());
  return value.is(Kind::list) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

bool is_repeatable(const Value& v) {
  return v.is(Kind::text) || v.is(Kind::list) || v.is(Kind::tuple);
}

std::string why_no(const Value& object, const Value& key) {
  const std::string name = object.is(Kind::none) ? "None" : "a value of type " + type_name(object);
  return fmt::format("{} has no {} {}", name, key.is(Kind::text) ? "attribute" : "element",
                     to_repr(key));
}

// Returns object[key] as Python does; nothing where Python throws a LookupError or TypeError.
std::optional<Value> subscript(const Value& object, const Value& key) {
  if (object.is(Kind::dict)) {
    if (key.is(Kind::list) || key.is(Kind::dict)) return std::nullopt;
    const Value* found = object.dict().find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (!key.is_integral()) return std::nullopt;
  int64_t at = key.integer();
  if (object.is(Kind::text)) {
    const std::string& text = object.text();
    if (at < 0) at += character_count(text);
    const size_t byte = at < 0 ? text.size() : byte_of_character(text, at);
    if (byte >= text.size()) return std::nullopt;
    return Value(*Characters(std::string_view(text).substr(byte)).begin());
  }
  if (!object.is(Kind::list) && !object.is(Kind::tuple) && !object.is(Kind::range))
    return std::nullopt;
  const auto& values = object.items()->values;
  if (at < 0) at += int64_t(values.size());
  return at >= 0 && at < int64_t(values.size()) ? std::optional(values[size_t(at)]) : std::nullopt;
}

std::optional<Value> loop_attribute(Loop& loop, const std::string& name) {
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return !loop.peek();
  if (name == "length") return loop.length();
  if (name == "revindex") return loop.length() - loop.index0;
  if (name == "revindex0") return loop.length() - loop.index0 - 1;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return loop.index0 == 0 || !loop.before ? Value::undefined("there is no previous item")
                                            : *loop.before;
  if (name == "nextitem")
    return loop.peek() ? loop.ahead.front() : Value::undefined("there is no next item");
  return std::nullopt;
}

// Returns Python's getattr(object, name), or nothing.
std::optional<Value> own_attribute(const Value& object, const std::string& name) {
  if (object.is(Kind::undefined)) fail("{}", object.why_undefined());
  if (name.starts_with("__") && name.ends_with("__"))
    return Value::undefined(fmt::format("templates cannot read the attribute {}", name));
  if (object.is(Kind::space)) {
    const Value* found = object.space().find(name);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (object.is(Kind::loop))
    if (auto found = loop_attribute(object.loop(), name)) return found;
  return method(object, name);
}

}  // namespace

Value attribute(const Value& object, const std::string& name) {
  if (auto found = own_attribute(object, name)) return *found;
  if (auto found = subscript(object, Value(name))) return *found;
  return Value::undefined(why_no(object, Value(name)));
}

Value item(const Value& object, const Value& key) {
  if (object.is(Kind::undefined)) fail("{}", object.why_undefined());
  if (auto found = subscript(object, key)) return *found;
  if (key.is(Kind::text))
    if (auto found = own_attribute(object, key.text())) return *found;
  return Value::undefined(why_no(object, key));
}

Value slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  if (object.is(Kind::undefined)) fail("{}", object.why_undefined());
  for (const Value* v : {&begin, &end, &step})
    if (!v->is(Kind::none) && !v->is_integral())
      return Value::undefined(fmt::format("a slice has a bound of type {}", type_name(*v)));
  const bool sliceable = object.is(Kind::text) || object.is(Kind::list) || object.is(Kind::tuple) ||
                         object.is(Kind::range);
  if (!sliceable) return Value::undefined(fmt::format("{} has no slices", type_name(object)));
  const int64_t stride = step.is(Kind::none) ? 1 : step.integer();
  if (stride == 0) fail("the step of a slice is zero");
  const int64_t n = length_of(object);
  const auto clamp = [&](const Value& bound, int64_t otherwise) {
    if (bound.is(Kind::none)) return otherwise;
    int64_t at = bound.integer();
    if (at < 0) at = at < -n ? (stride < 0 ? -1 : 0) : at + n;
    return std::min(at, stride < 0 ? n - 1 : n);
  };
  const int64_t from = clamp(begin, stride < 0 ? n - 1 : 0), to = clamp(end, stride < 0 ? -1 : n);
  if (object.is(Kind::text) && stride == 1) {
    const std::string& text = object.text();
    if (from >= to) return Value("");
    const size_t b = byte_of_character(text, from), e = byte_of_character(text, to);
    return Value(text.substr(b, e - b));
  }
  // A stride beyond the length ends the loop, without an overflow.
  const int64_t pace = std::clamp<int64_t>(stride, -n - 1, n + 1);
  const auto for_each_place = [&](auto&& take) {
    for (int64_t i = from; stride > 0 ? i < to : i > to; i += pace) take(size_t(i));
  };
  if (object.is(Kind::text)) {
    std::vector<std::string_view> characters;
    for (const std::string_view c : Characters(object.text())) characters.push_back(c);
    std::string text;
    for_each_place([&](size_t i) { text += characters[i]; });
    return Value(std::move(text));
  }
  std::vector<Value> out;
  for_each_place([&](size_t i) { out.push_back(object.items()->values[i]); });
  return object.is(Kind::tuple) ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

Value add(Machine& machine, const Value& a, const Value& b) {
  if (a.is(Kind::text) && b.is(Kind::text)) {
    const bool markup = a.is_markup() || b.is_markup();
    const auto part = [&](const Value& v) {
      return markup && !v.is_markup() ? escape_html(v.text()) : v.text();
    };
    std::string text = part(a) + part(b);
    if (int64_t(text.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
    machine.charge(int64_t(text.size()));
    return Value(std::move(text), markup);
  }
  if (a.kind() == b.kind() && (a.is(Kind::list) || a.is(Kind::tuple))) {
    std::vector<Value> values = a.items()->values;
    values.insert(values.end(), b.items()->values.begin(), b.items()->values.end());
    machine.charge(int64_t(values.size() * sizeof(Value)));
    return a.is(Kind::list) ? Value::list(std::move(values)) : Value::tuple(std::move(values));
  }
  no_operator("+", a, b);
}

Value arithmetic(Machine& machine, const std::string& op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.integer(), b.integer());
    return real_arithmetic(op, a.real(), b.real());
  }
  if (op == "+") return add(machine, a, b);
  if (op == "*" && is_repeatable(a) && b.is_integral()) return repeated(machine, a, b.integer());
  if (op == "*" && is_repeatable(b) && a.is_integral()) return repeated(machine, b, a.integer());
  if (op == "%" && a.is(Kind::text)) return format_percent(machine, a.text(), b);
  no_operator(op, a, b);
}

Value negative(const Value& value) {
  if (value.is(Kind::undefined)) fail("{}", value.why_undefined());
  if (value.is(Kind::real)) return -value.real();
  if (!value.is_integral()) fail("a value of type {} has no negative", type_name(value));
  if (value.integer() == std::numeric_limits<int64_t>::min()) too_large();
  return -value.integer();
}

bool contains(const Value& container, const Value& value) {
  if (container.is(Kind::text)) {
    if (value.is(Kind::undefined)) fail("{}", value.why_undefined());
    if (!value.is(Kind::text)) fail("a text cannot contain a value of type {}", type_name(value));
    return container.text().find(value.text()) != std::string::npos;
  }
  if (container.is(Kind::dict)) {
    key_of(value);  // throws as Python does
    return container.dict().find(value) != nullptr;
  }
  if (const Items* items = container.items())
    return std::ranges::any_of(items->values,
                               [&](const Value& v) { return v.same(value) || equal(v, value); });
  if (container.is(Kind::iteration)) {  // reads until it is found
    Iteration& it = container.iteration();
    while (it.at < it.items->values.size())
      if (equal(it.items->values[it.at++], value)) return true;
    return false;
  }
  if (container.is(Kind::undefined)) return false;
  fail("a value of type {} contains nothing", type_name(container));
}

}  // namespace mtrain::data::jinja
