// The values of a template: Python's, since templates are written for Jinja2. A value is a few
// words; texts, lists and dictionaries are shared and never change.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace mtrain::data::jinja {

class Value;
struct Dict;
struct Function;
struct Loop;
struct Namespace;

// Why a template cannot be rendered. The renderer adds the template's name and the line.
struct Fault {
  std::string why;
};

template <class... T>
[[noreturn]] void fail(fmt::format_string<T...> form, T&&... values) {
  throw Fault{fmt::format(form, std::forward<T>(values)...)};
}

inline constexpr int kDeepestValue = 100;                   // lists and dictionaries in each other
inline constexpr int64_t kLargestValue = int64_t{1} << 27;  // bytes, about

// The elements of a list, a tuple, a range or a view of a dictionary.
struct Items {
  std::vector<Value> values;
  int depth = 1;
  int64_t weight = 0;
  std::string label = {};  // of a range, its text; of a view, its Python type
};

// Python's generators and iterators: they can be read once.
struct Iteration {
  std::shared_ptr<const Items> items;
  size_t at = 0;
};

struct None {};
struct Undefined {
  std::shared_ptr<const std::string> why;  // what is missing
};
struct Text {
  std::shared_ptr<const std::string> bytes;  // UTF-8
  bool markup = false;                       // made by the filters `escape` and `safe`
};
struct List {
  std::shared_ptr<const Items> items;
};
struct Tuple {
  std::shared_ptr<const Items> items;
};
struct Range {
  std::shared_ptr<const Items> items;
};
struct View {
  std::shared_ptr<const Items> items;
};

enum class Kind {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  list,
  tuple,
  range,
  view,
  iteration,
  dict,
  space,
  loop,
  function,
};

class Value {
 public:
  Value() : data_(None()) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(int value) : data_(int64_t(value)) {}
  Value(double value) : data_(value) {}
  Value(std::string text, bool markup = false)
      : data_(Text{std::make_shared<const std::string>(std::move(text)), markup}) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<const Function> function) : data_(std::move(function)) {}
  Value(Namespace* space) : data_(space) {}
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
  static Value undefined(std::string why);
  static Value list(std::vector<Value> values);
  static Value tuple(std::vector<Value> values);
  static Value range(std::vector<Value> values, std::string label);
  static Value view(std::vector<Value> values, std::string type);
  static Value iteration(std::vector<Value> values);  // a generator

  Kind kind() const { return Kind(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_number() const {
    return is(Kind::boolean) || is(Kind::integer) || is(Kind::real);
  }  // as Python: true is 1
  bool is_integral() const { return is(Kind::boolean) || is(Kind::integer); }
  bool is_markup() const { return is(Kind::text) && std::get<Text>(data_).markup; }

  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const;  // of an integer or a boolean
  double real() const;      // of a number
  const std::string& text() const { return *std::get<Text>(data_).bytes; }
  const std::string& why_undefined() const { return *std::get<Undefined>(data_).why; }
  // Returns the items of a list, a tuple, a range or a view; null for other kinds.
  const Items* items() const;
  std::shared_ptr<const Items> shared_items() const;
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Iteration& iteration() const { return *std::get<std::shared_ptr<Iteration>>(data_); }
  Namespace& space() const { return *std::get<Namespace*>(data_); }
  Loop& loop() const { return *std::get<std::shared_ptr<Loop>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<const Function>>(data_); }
  // Whether both are the same object, as Python's `is`.
  bool same(const Value& other) const;
  int depth() const;  // of lists and dictionaries in each other
  // The bytes of memory that the value would take, about, if it shared nothing with others.
  int64_t weight() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, Text, List, Tuple, Range, View,
               std::shared_ptr<Iteration>, std::shared_ptr<const Dict>, Namespace*,
               std::shared_ptr<Loop>, std::shared_ptr<const Function>>
      data_;
};

// A dictionary; its entries keep the order in which they were added.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;
  int64_t weight = 0;
  std::vector<std::pair<std::string, uint32_t>> index = {};  // of many entries, by key_of(), sorted

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

// Makes a dictionary. Of entries with equal keys the last value stays, at the first one's place.
// Throws Fault for a key that Python cannot hash.
Value make_dict(std::vector<std::pair<Value, Value>> entries);

// The attributes that `set ns.name = ...` changes. The renderer owns it.
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;

  Value* find(std::string_view name);
};

bool truth(const Value& value);
std::string type_name(const Value& value);  // Python's: "str", "dict", ...
std::string to_text(const Value& value);    // Python's str()
std::string to_repr(const Value& value);    // Python's repr()
std::string real_to_text(double value);
bool equal(const Value& a, const Value& b);
// Returns a number below, equal to or above 0. Throws Fault if Python cannot order the two.
int compare(const Value& a, const Value& b);
// Returns a text that equal keys of a dictionary share. Throws Fault if Python cannot hash it.
std::string key_of(const Value& value);
// Returns Python's len(); throws Fault if the value has none.
int64_t length_of(const Value& value);
bool is_iterable(const Value& value);
// Returns the elements; reads an iteration to its end. Throws Fault if it is not iterable.
std::vector<Value> elements_of(const Value& value);

}  // namespace mtrain::data::jinja
