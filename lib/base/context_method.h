// How the ranks of context parallelism exchange keys and values.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

// a2a_p2p is all-to-all within a group of ranks, and a ring between the groups.
enum class ContextMethod { p2p, all_gather, a2a, a2a_p2p };
constexpr auto enum_names(ContextMethod) {
  return std::array{
      EnumName{ContextMethod::p2p, "p2p"}, EnumName{ContextMethod::all_gather, "all_gather"},
      EnumName{ContextMethod::a2a, "a2a"}, EnumName{ContextMethod::a2a_p2p, "a2a+p2p"}};
}

}  // namespace mtrain
