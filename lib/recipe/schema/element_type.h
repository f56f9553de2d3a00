// The element types that a recipe can name.
#pragma once
#include <array>

#include "base/dtype.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class ElementType { fp32, bf16, fp16 };
constexpr auto enum_names(ElementType) {
  return std::array{
      EnumName{ElementType::fp32, "fp32"},          EnumName{ElementType::bf16, "bf16"},
      EnumName{ElementType::fp16, "fp16"},          EnumName{ElementType::fp32, "float32"},
      EnumName{ElementType::bf16, "bfloat16"},      EnumName{ElementType::fp16, "float16"},
      EnumName{ElementType::fp32, "torch.float32"}, EnumName{ElementType::bf16, "torch.bfloat16"},
      EnumName{ElementType::fp16, "torch.float16"}};
}

constexpr DType element_dtype(ElementType type) {
  switch (type) {
    case ElementType::fp32: return DType::f32;
    case ElementType::bf16: return DType::bf16;
    case ElementType::fp16: return DType::f16;
  }
  return DType::f32;
}

}  // namespace mtrain::recipe
