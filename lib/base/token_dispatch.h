// How tokens come to the ranks of their experts.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class TokenDispatch { all_gather, all_to_all, flex };
constexpr auto enum_names(TokenDispatch) {
  return std::array{EnumName{TokenDispatch::all_gather, "all_gather"},
                    EnumName{TokenDispatch::all_to_all, "alltoall"},
                    EnumName{TokenDispatch::flex, "flex"}};
}

}  // namespace mtrain
