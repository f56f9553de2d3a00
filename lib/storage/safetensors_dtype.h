// The element types of the safetensors format, as its reference implementation (0.8) names them.
// Only lib/storage includes this header.
#pragma once
#include <optional>
#include <string_view>

#include "base/dtype.h"

namespace mtrain::storage {

struct SafetensorsType {
  std::string_view name;
  int bits;                      // of an element; a tensor has whole bytes
  std::optional<DType> dtype{};  // absent: mtrain has no such type
};

inline constexpr SafetensorsType kSafetensorsTypes[] = {{"F32", 32, DType::f32},
                                                        {"BF16", 16, DType::bf16},
                                                        {"F16", 16, DType::f16},
                                                        {"F64", 64, DType::f64},
                                                        {"I32", 32, DType::i32},
                                                        {"I64", 64, DType::i64},
                                                        {"U8", 8, DType::u8},
                                                        {"F8_E4M3", 8, DType::f8e4m3},
                                                        {"F8_E5M2", 8, DType::f8e5m2},
                                                        {"BOOL", 8},
                                                        {"F4", 4},
                                                        {"F6_E2M3", 6},
                                                        {"F6_E3M2", 6},
                                                        {"I8", 8},
                                                        {"F8_E8M0", 8},
                                                        {"F8_E4M3FNUZ", 8},
                                                        {"F8_E5M2FNUZ", 8},
                                                        {"I16", 16},
                                                        {"U16", 16},
                                                        {"U32", 32},
                                                        {"C64", 64},
                                                        {"U64", 64}};

constexpr const SafetensorsType* find_safetensors_type(std::string_view name) {
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.name == name) return &type;
  return nullptr;
}

// Every DType is among the types.
constexpr std::string_view safetensors_name(DType dtype) {
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.dtype == dtype) return type.name;
  return {};
}

}  // namespace mtrain::storage
