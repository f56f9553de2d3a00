// Element types, and bf16 as a storage type with fp32 arithmetic.
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace mtrain {

enum class DType : uint8_t { f32, bf16, f64, i32, i64, u8 };

int64_t dtype_size(DType dtype);           // bytes per element
std::string_view dtype_name(DType dtype);  // "fp32", "bf16", ...

// Upper half of an fp32. Conversion from fp32 rounds to nearest even and keeps NaN a NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t((u >> 16) | 0x40)
                                           : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

template <class T>
inline constexpr DType dtype_of = T::is_no_element_type;  // declared below for those that are
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;

[[noreturn]] void throw_not_float(DType dtype);

// with_float(dtype, [&]<class T>() { ... }): calls f with T = float or bf16.
template <class F>
decltype(auto) with_float(DType dtype, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::bf16) return f.template operator()<bf16>();
  throw_not_float(dtype);
}

}  // namespace mtrain
