// What chooses experts instead of the router, in benchmarks; model/experts/route_pattern.h.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class RoutePattern { none, balanced, zipf };  // none: the router chooses
constexpr auto enum_names(RoutePattern) {
  return std::array{EnumName{RoutePattern::balanced, "balanced"},
                    EnumName{RoutePattern::zipf, "zipf"}};
}

}  // namespace mtrain
