// mixed_precision: the element types of training.
#pragma once
#include <array>
#include <tuple>

#include "recipe/field.h"

namespace mtrain {

enum class Precision { fp32, bf16_mixed };
constexpr auto enum_names(Precision) {
  return std::array{EnumName{Precision::fp32, "fp32"},
                    EnumName{Precision::bf16_mixed, "bf16_mixed"},
                    EnumName{Precision::fp32, "float32"}, EnumName{Precision::bf16_mixed, "bf16"}};
}

struct MixedPrecisionConfig {
  Precision name = Precision::bf16_mixed;

  static constexpr auto fields = std::tuple{
      Field{"name", &MixedPrecisionConfig::name,
            "bf16_mixed: bf16 weights and activations, fp32 sums, gradients and master weights"}};
};

}  // namespace mtrain
