// The shape in which a learning rate decays. The recipe and the plan share this enum.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class LrDecay { constant, linear, cosine, exponential, minus_sqrt };
// The shapes of the last phase of warm-up, stable, decay. A constant rate has no such phase.
constexpr auto enum_names(LrDecay) {
  return std::array{EnumName{LrDecay::linear, "linear"}, EnumName{LrDecay::cosine, "cosine"},
                    EnumName{LrDecay::exponential, "exponential"},
                    EnumName{LrDecay::minus_sqrt, "minus_sqrt"}};
}

}  // namespace mtrain
