// The norms that a model may have. Recipe, model, operations and kernels share this enum.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class NormKind { rms, layer };
constexpr auto enum_names(NormKind) {
  return std::array{EnumName{NormKind::rms, "rmsnorm"}, EnumName{NormKind::layer, "layernorm"}};
}

}  // namespace mtrain
