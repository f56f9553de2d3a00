// The names that the safetensors format gives to dtypes. Only lib/storage includes this header.
#pragma once
#include <optional>
#include <string_view>
#include <utility>

#include "base/dtype.h"

namespace mtrain::storage {

inline constexpr std::pair<std::string_view, DType> kSafetensorsDtypes[] = {
    {"F32", DType::f32}, {"BF16", DType::bf16}, {"F16", DType::f16}, {"F64", DType::f64},
    {"I32", DType::i32}, {"I64", DType::i64},   {"U8", DType::u8}};

inline std::string_view safetensors_name(DType dtype) {
  for (const auto& [name, known] : kSafetensorsDtypes)
    if (known == dtype) return name;
  return "?";
}

inline std::optional<DType> safetensors_dtype(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsDtypes)
    if (known == name) return dtype;
  return std::nullopt;
}

}  // namespace mtrain::storage
