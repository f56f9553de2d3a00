// The names of an enumeration's values in recipes. An enumeration that a recipe can give lists them
// in `constexpr auto enum_names(E)`, a std::array of EnumName beside it.
#pragma once
#include <string_view>

namespace mtrain {

// A value is printed by the first of its names. Names are compared without regard to case, dashes
// and underscores.
template <class E>
struct EnumName {
  E value;
  std::string_view name;
};
template <class E>
EnumName(E, std::string_view) -> EnumName<E>;

template <class E>
constexpr std::string_view enum_name(E value) {
  for (const auto& entry : enum_names(value))
    if (entry.value == value) return entry.name;
  return "?";
}

}  // namespace mtrain
