// What a template can call: functions, methods, filters and tests share one form of arguments.
#pragma once
#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/jinja/value.h"

namespace mtrain::data::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// The part of the renderer that functions need.
class Machine {
 public:
  virtual ~Machine() = default;

  // Counts the bytes of a new value. Throws Fault if the template has made too many.
  virtual void charge(int64_t bytes) = 0;
  virtual Value call(const Value& callee, Arguments arguments) = 0;
  virtual std::string now(const std::string& form) = 0;  // strftime_now
};

using Native = Value (*)(Machine&, const Value& self, Arguments&);

struct Function {
  std::string name;
  Native native = nullptr;
  std::optional<Value> self = {};  // of a method
  // Set instead of `native` for a macro, the caller of a call block, or a recursive loop.
  std::function<Value(Arguments&)> closure = {};
};

// The arguments of a call by the function's parameters, as Python assigns them. Throws Fault if
// they do not fit.
class Parameters {
 public:
  Parameters(std::string_view function, Arguments& arguments,
             std::initializer_list<const char*> names, size_t required = 0);

  bool has(size_t i) const { return values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  // Whether it is given and is not none.
  bool is_set(size_t i) const { return has(i) && !values_[i]->is(Kind::none); }
  int64_t integer(size_t i, int64_t otherwise) const;
  bool boolean(size_t i, bool otherwise) const;
  const std::string& text(size_t i) const;
  const std::string* optional_text(size_t i) const;  // null if it is absent or none

 private:
  std::string function_;
  std::vector<const char*> names_;
  std::vector<std::optional<Value>> values_;
};

// The variable `loop` of a for loop. Elements are read when they are needed, since a template can
// observe it.
struct Loop {
  std::function<bool(Value& element)> read;  // returns false at the end
  std::optional<int64_t> known_length = {};
  int depth0 = 0;
  std::function<Value(Arguments&)> recurse = {};

  int64_t index0 = -1;
  std::optional<Value> before = {}, current = {}, changed = {};
  std::deque<Value> ahead = {};

  bool next();  // sets `current`
  bool peek();  // whether another element follows; it is then ahead[0]
  int64_t length();
};

// As Jinja's `object.name` and `object[key]`: undefined if there is none.
Value attribute(const Value& object, const std::string& name);
Value item(const Value& object, const Value& key);
Value slice(const Value& object, const Value& begin, const Value& end, const Value& step);

Value add(Machine& machine, const Value& a, const Value& b);
Value arithmetic(Machine& machine, const std::string& op, const Value& a, const Value& b);
Value negative(const Value& value);
bool contains(const Value& container, const Value& value);
Value format_percent(Machine& machine, const std::string& form, const Value& values);

// Return null if there is none of this name. `method` binds `self`.
std::optional<Value> method(const Value& self, const std::string& name);
std::optional<Value> global(const std::string& name);
bool is_filter(const std::string& name);
bool is_test(const std::string& name);
Value apply_filter(Machine& machine, const std::string& name, const Value& value,
                   Arguments& arguments);
bool apply_test(Machine& machine, const std::string& name, const Value& value,
                Arguments& arguments);

struct JsonStyle {
  bool ascii = false, sort_keys = false;
  std::optional<std::string> indent = {};
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style = {});

}  // namespace mtrain::data::jinja
