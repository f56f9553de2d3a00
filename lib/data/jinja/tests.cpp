// Jinja's tests, and the functions that every template has.
#include <algorithm>
#include <map>

#include "data/jinja/function.h"
#include "data/jinja/text.h"

namespace mtrain::data::jinja {
namespace {

using Tests = std::map<std::string_view, bool (*)(Machine&, const Value&)>;
using Comparisons = std::map<std::string_view, bool (*)(const Value&, const Value&)>;

constexpr int64_t kLongestRange = 100000;  // as in Jinja's sandbox

int64_t integer_for(const char* test, const Value& value) {
  if (value.is(Kind::undefined)) fail("{}", value.why_undefined());
  if (!value.is_integral()) fail("the test {} needs an integer", test);
  return value.integer();
}

const Tests& plain_tests() {
  static const Tests tests = {
      {"defined", [](Machine&, const Value& v) { return !v.is(Kind::undefined); }},
      {"undefined", [](Machine&, const Value& v) { return v.is(Kind::undefined); }},
      {"none", [](Machine&, const Value& v) { return v.is(Kind::none); }},
      {"boolean", [](Machine&, const Value& v) { return v.is(Kind::boolean); }},
      {"true", [](Machine&, const Value& v) { return v.is(Kind::boolean) && v.boolean(); }},
      {"false", [](Machine&, const Value& v) { return v.is(Kind::boolean) && !v.boolean(); }},
      {"integer", [](Machine&, const Value& v) { return v.is(Kind::integer); }},
      {"float", [](Machine&, const Value& v) { return v.is(Kind::real); }},
      {"number", [](Machine&, const Value& v) { return v.is_number(); }},
      {"string", [](Machine&, const Value& v) { return v.is(Kind::text); }},
      {"mapping", [](Machine&, const Value& v) { return v.is(Kind::dict); }},
      {"sequence",
       [](Machine&, const Value& v) {
         return v.is(Kind::text) || v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::range) ||
                v.is(Kind::dict) || v.is(Kind::undefined);
       }},
      {"iterable", [](Machine&, const Value& v) { return is_iterable(v); }},
      {"callable",
       [](Machine&, const Value& v) { return v.is(Kind::function) || v.is(Kind::undefined); }},
      {"escaped", [](Machine&, const Value& v) { return v.is_markup(); }},
      {"filter", [](Machine&, const Value& v) { return v.is(Kind::text) && is_filter(v.text()); }},
      {"test", [](Machine&, const Value& v) { return v.is(Kind::text) && is_test(v.text()); }},
      {"odd", [](Machine&, const Value& v) { return integer_for("odd", v) % 2 != 0; }},
      {"even", [](Machine&, const Value& v) { return integer_for("even", v) % 2 == 0; }},
      {"lower",
       [](Machine& m, const Value& v) {
         return truth(m.call(*method(Value(to_text(v)), "islower"), {}));
       }},
      {"upper",
       [](Machine& m, const Value& v) {
         return truth(m.call(*method(Value(to_text(v)), "isupper"), {}));
       }},
  };
  return tests;
}

const Comparisons& comparisons() {
  static const Comparisons tests = {
      {"eq", equal},
      {"ne", [](const Value& a, const Value& b) { return !equal(a, b); }},
      {"lt", [](const Value& a, const Value& b) { return compare(a, b) < 0; }},
      {"le", [](const Value& a, const Value& b) { return compare(a, b) <= 0; }},
      {"gt", [](const Value& a, const Value& b) { return compare(a, b) > 0; }},
      {"ge", [](const Value& a, const Value& b) { return compare(a, b) >= 0; }},
      {"in", [](const Value& a, const Value& b) { return contains(b, a); }},
      {"sameas", [](const Value& a, const Value& b) { return a.same(b); }},
      {"divisibleby",
       [](const Value& a, const Value& b) {
         const int64_t by = integer_for("divisibleby", b);
         if (by == 0) fail("division by zero");
         return by == -1 || integer_for("divisibleby", a) % by == 0;
       }},
  };
  return tests;
}

std::string_view known_name(std::string_view name) {
  static const std::map<std::string_view, std::string_view> aliases = {
      {"==", "eq"}, {"equalto", "eq"}, {"!=", "ne"},       {">", "gt"}, {"greaterthan", "gt"},
      {">=", "ge"}, {"<", "lt"},       {"lessthan", "lt"}, {"<=", "le"}};
  const auto alias = aliases.find(name);
  return alias == aliases.end() ? name : alias->second;
}

Value make_range(Machine& machine, const Value&, Arguments& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty())
    fail("range takes one to three integers");
  std::vector<int64_t> n;
  for (const Value& v : args.positional) {
    if (v.is(Kind::undefined)) fail("{}", v.why_undefined());
    if (!v.is_integral()) fail("range needs integers, not a value of type {}", type_name(v));
    n.push_back(v.integer());
  }
  const int64_t from = n.size() > 1 ? n[0] : 0, to = n.size() > 1 ? n[1] : n[0];
  const int64_t step = n.size() > 2 ? n[2] : 1;
  if (step == 0) fail("range has a step of zero");
  std::vector<Value> values;
  for (int64_t at = from; step > 0 ? at < to : at > to;) {
    values.emplace_back(at);
    if (int64_t(values.size()) > kLongestRange)
      fail("range has more than {} numbers", kLongestRange);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  machine.charge(int64_t(values.size() * sizeof(Value)));
  return Value::range(std::move(values), step == 1
                                             ? fmt::format("range({}, {})", from, to)
                                             : fmt::format("range({}, {}, {})", from, to, step));
}

Value make_dictionary(Machine& machine, const Value&, Arguments& args) {
  std::vector<std::pair<Value, Value>> entries;
  if (args.positional.size() > 1) fail("dict takes at most one argument");
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is(Kind::dict))
      entries = from.dict().entries;
    else
      for (const Value& pair : elements_of(from)) {
        std::vector<Value> both = elements_of(pair);
        if (both.size() != 2) fail("dict needs pairs, not {} values", both.size());
        entries.emplace_back(std::move(both[0]), std::move(both[1]));
      }
  }
  for (auto& [name, value] : args.named) entries.emplace_back(name, std::move(value));
  machine.charge(int64_t(2 * entries.size() * sizeof(Value)));
  return make_dict(std::move(entries));
}

Value raise(Machine&, const Value&, Arguments& args) {
  const Parameters p("raise_exception", args, {"message"}, 1);
  fail("the template says: {}", to_text(p[0]));
}

Value now_as_text(Machine& machine, const Value&, Arguments& args) {
  const Parameters p("strftime_now", args, {"format"}, 1);
  return Value(machine.now(p.text(0)));
}

}  // namespace

bool is_test(const std::string& name) {
  const std::string_view known = known_name(name);
  return plain_tests().contains(known) || comparisons().contains(known);
}

bool apply_test(Machine& machine, const std::string& name, const Value& value,
                Arguments& arguments) {
  const std::string_view known = known_name(name);
  if (const auto plain = plain_tests().find(known); plain != plain_tests().end()) {
    const Parameters none(name, arguments, {});
    return plain->second(machine, value);
  }
  if (const auto two = comparisons().find(known); two != comparisons().end()) {
    const Parameters p(name, arguments, {"other"}, 1);
    return two->second(value, p[0]);
  }
  fail("there is no test {}", name);
}

std::optional<Value> global(const std::string& name) {
  static const std::map<std::string_view, Native> functions = {{"range", make_range},
                                                               {"dict", make_dictionary},
                                                               {"raise_exception", raise},
                                                               {"strftime_now", now_as_text}};
  const auto found = functions.find(name);
  if (found == functions.end()) return std::nullopt;
  return Value(std::make_shared<const Function>(Function{name, found->second}));
}

}  // namespace mtrain::data::jinja
