// How documents are put into packs.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class PackingStrategy { first_fit, thd, neat };
constexpr auto enum_names(PackingStrategy) {
  return std::array{EnumName{PackingStrategy::first_fit, "first_fit"},
                    EnumName{PackingStrategy::thd, "thd"}, EnumName{PackingStrategy::neat, "neat"}};
}

}  // namespace mtrain
