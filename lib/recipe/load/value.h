// Reads and prints one value by its type. Each type has one table of functions (TypeOps), to which
// the schema rows of its fields point.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "recipe/load/node.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

// What is wrong with a value, and what to write instead.
struct ValueError {
  std::string reason, hint;
};

struct EnvVariable;
struct FaultConfig;
struct OptimizerGroup;
struct TpOverlapConfig;

struct TypeInfo {
  enum class Kind { boolean, integer, number, text, choice, list, mapping };
  Kind kind = Kind::text;
  bool may_be_none = false, may_be_auto = false;
  std::vector<std::string> choices;  // all names of an enumeration, or those of a list's items
  std::vector<std::string> shown;    // the first name of each value
  Kind item = Kind::text;            // kind of a list's items
  std::string str() const;           // "integer or none"
};

// Reads a node into `out`. If the value is refused, returns false and describes the mistake in `c`.
bool read_value(const Node& node, const FieldOptions& options, bool& out, ValueError& c);
bool read_value(const Node& node, const FieldOptions& options, int64_t& out, ValueError& c);
bool read_value(const Node& node, const FieldOptions& options, double& out, ValueError& c);
bool read_value(const Node& node, const FieldOptions& options, std::string& out, ValueError& c);
bool read_value(const Node& node, const FieldOptions& options,
                std::map<std::string, EnvVariable>& out, ValueError& c);
bool read_value(const Node& node, const FieldOptions& options, FaultConfig& out, ValueError& c);
bool read_value(const Node& node, const FieldOptions& options, OptimizerGroup& out, ValueError& c);
bool read_value(const Node& node, const FieldOptions& options, TpOverlapConfig& out, ValueError& c);

std::string show_value(bool value);
std::string show_value(int64_t value);
std::string show_value(double value);
std::string show_value(const std::string& value);  // quoted if YAML would read something else
std::string show_value(const std::map<std::string, EnvVariable>& value);
std::string show_value(const FaultConfig& value);
std::string show_value(const OptimizerGroup& value);
std::string show_value(const TpOverlapConfig& value);

std::string describe(const Node& node);        // "the text `fast`", "a list", for messages
bool is_integer_text(const std::string& raw);  // whether it is an integer such as 1_000
std::string fold_name(std::string_view name);  // lower case without dashes and underscores
// Returns the index of the choice that `node` names, or -1; `c` then lists the choices.
int read_choice(const Node& node, const std::vector<std::string>& choices,
                const std::vector<std::string>& shown, ValueError& c);

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsAuto : std::false_type {};
template <class T>
struct IsAuto<Auto<T>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsArray : std::false_type {};
template <class T, size_t N>
struct IsArray<std::array<T, N>> : std::true_type {};

template <class E>
requires std::is_enum_v<E> std::vector<std::string> choice_names() {
  std::vector<std::string> names;
  for (const auto& entry : enum_names(E{})) names.emplace_back(entry.name);
  return names;
}

// Returns each value once, under its first name.
template <class E>
requires std::is_enum_v<E> std::vector<std::string> shown_names() {
  std::vector<std::string> names;
  for (const auto& entry : enum_names(E{}))
    if (enum_name(entry.value) == entry.name) names.emplace_back(entry.name);
  return names;
}

template <class T>
bool read(const Node& node, const FieldOptions& options, T& out, ValueError& c) {
  if constexpr (std::is_enum_v<T>) {
    const int i = read_choice(node, choice_names<T>(), shown_names<T>(), c);
    if (i >= 0) out = enum_names(T{})[size_t(i)].value;
    return i >= 0;
  } else if constexpr (IsAuto<T>::value || IsOptional<T>::value) {
    const bool automatic = IsAuto<T>::value && node.kind == Node::Kind::scalar && !node.quoted &&
                           (fold_name(node.text) == "auto" ||
                            (!options.auto_word.empty() && node.text == options.auto_word));
    if (automatic || node.unset()) {
      out.reset();
      return true;
    }
    typename T::value_type value{};
    if (!read(node, options, value, c)) return false;
    out = value;
    return true;
  } else if constexpr (IsVector<T>::value) {
    out.clear();
    std::vector<Node> single{node};
    const auto& items = node.kind == Node::Kind::list ? node.items : single;
    // Lists of integers describe layers, and are searched once for each layer.
    constexpr size_t kMaxNumbers = 8192;
    if (std::is_same_v<T, std::vector<int64_t>> && items.size() > kMaxNumbers) {
      c.reason = "a list of " + std::to_string(items.size()) + " numbers, expected at most " +
                 std::to_string(kMaxNumbers);
      return false;
    }
    for (const auto& item : items) {
      typename T::value_type value{};
      if (!read(item, options, value, c)) return false;
      out.push_back(value);
    }
    return true;
  } else if constexpr (IsArray<T>::value) {
    if (node.kind != Node::Kind::list || node.items.size() != out.size()) {
      c.reason =
          "expected a list of " + std::to_string(out.size()) + " values, got " + describe(node);
      c.hint = "write it as [a, b]";
      return false;
    }
    for (size_t i = 0; i < out.size(); ++i)
      if (!read(node.items[i], options, out[i], c)) return false;
    return true;
  } else {
    return read_value(node, options, out, c);
  }
}

template <class T>
std::string show(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(enum_name(value));
  } else if constexpr (IsAuto<T>::value) {
    return value ? show(*value) : "auto";
  } else if constexpr (IsOptional<T>::value) {
    return value ? show(*value) : "none";
  } else if constexpr (IsVector<T>::value || IsArray<T>::value) {
    std::string s;
    for (const auto& item : value) s += (s.empty() ? "" : ", ") + show(item);
    return "[" + s + "]";
  } else {
    return show_value(value);
  }
}

template <class T>
TypeInfo type_info() {
  using Kind = TypeInfo::Kind;
  TypeInfo info;
  if constexpr (std::is_enum_v<T>) {
    info.kind = Kind::choice;
    info.choices = choice_names<T>();
    info.shown = shown_names<T>();
  } else if constexpr (IsAuto<T>::value || IsOptional<T>::value) {
    info = type_info<typename T::value_type>();
    (IsAuto<T>::value ? info.may_be_auto : info.may_be_none) = true;
  } else if constexpr (IsVector<T>::value || IsArray<T>::value) {
    info = type_info<typename T::value_type>();
    info.item = info.kind;
    info.kind = Kind::list;
  } else if constexpr (std::is_same_v<T, bool>) {
    info.kind = Kind::boolean;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    info.kind = Kind::integer;
  } else if constexpr (std::is_same_v<T, double>) {
    info.kind = Kind::number;
  } else if constexpr (std::is_same_v<T, std::string>) {
    info.kind = Kind::text;
  } else {
    info.kind = Kind::mapping;
  }
  return info;
}

struct TypeOps {
  bool (*read)(const Node&, const FieldOptions&, void* out, ValueError&);
  std::string (*show)(const void* value);
  void (*copy)(void* to, const void* from);
  TypeInfo (*info)();
};

template <class T>
const TypeOps* type_ops() {
  static const TypeOps ops{
      [](const Node& node, const FieldOptions& options, void* out, ValueError& c) {
        T value = *static_cast<T*>(out);  // `out` stays as it is when the value is refused
        if (!mtrain::recipe::read(node, options, value, c)) return false;
        *static_cast<T*>(out) = value;
        return true;
      },
      [](const void* value) { return mtrain::recipe::show(*static_cast<const T*>(value)); },
      [](void* to, const void* from) { *static_cast<T*>(to) = *static_cast<const T*>(from); },
      [] { return type_info<T>(); }};
  return &ops;
}

}  // namespace mtrain::recipe
