// Element types. bf16, f16 and the two 8-bit floats are storage types; arithmetic on them is fp32.
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace mtrain {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u8, f8e4m3, f8e5m2 };

int64_t dtype_size(DType dtype);           // bytes per element
std::string_view dtype_name(DType dtype);  // "fp32", "bf16", ...

// The upper half of an fp32 number. Conversion from fp32 rounds to nearest even and keeps NaN a
// NaN.
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

// IEEE 754's binary16: 5 bits of exponent, 10 of mantissa, up to 65504. Conversion from fp32 rounds
// to nearest even, with denormals, and gives the same bits as F16C's instructions. A value that is
// too large becomes an infinity, which loss scaling detects; NaN stays a NaN.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f), size = u & 0x7fffffffu;
    uint32_t code = 0;
    if (size > 0x7f800000u) {
      code = 0x7e00 | (size >> 13 & 0x3ff);
    } else if (size < 0x38800000u) {  // below 2^-14: the last place of 0.5 in fp32 is that of f16's
                                      // denormals
      code = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    } else {
      const uint32_t rounded = (size + 0xfff + ((size >> 13) & 1)) >> 13;
      code = rounded - (112u << 10);
      if (code > 0x7c00u) code = 0x7c00u;
    }
    bits = uint16_t((u >> 16 & 0x8000) | code);
  }
  explicit operator float() const {
    const uint32_t code = bits & 0x7fffu, sign = uint32_t(bits & 0x8000u) << 16;
    if (code >= 0x7c00u)
      return std::bit_cast<float>(sign | 0x7f800000u | (code & 0x3ff) << 13 |
                                  (code > 0x7c00u ? 0x400000u : 0u));
    const float size =
        code < 0x400u ? float(code) * 0x1p-24f : std::bit_cast<float>((code << 13) + (112u << 23));
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(size));
  }
};

// Floats of 8 bits: a sign, EXPONENT bits, MANTISSA bits (Micikevicius et al. 2022, "FP8 formats
// for deep learning"). Conversion from fp32 rounds to nearest even and saturates, infinities too;
// NaN becomes 0x7f for either sign.
template <int EXPONENT, int MANTISSA, uint8_t LARGEST>
struct Float8 {
  static constexpr int kBias = (1 << (EXPONENT - 1)) - 1;
  static constexpr uint8_t kLargest = LARGEST;  // code of the largest finite number
  uint8_t bits = 0;
  Float8() = default;
  explicit Float8(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f), size = u & 0x7fffffffu;
    if (size > 0x7f800000u) {
      bits = 0x7f;
      return;
    }
    constexpr uint32_t kSmallestNormal = uint32_t(128 - kBias) << 23;
    uint32_t code = 0;
    if (size < kSmallestNormal) {
      // Adding `step` rounds: at its size the last place of fp32 is that of the type's denormals.
      const float step = std::bit_cast<float>(uint32_t(127 + 24 - kBias - MANTISSA) << 23);
      code = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + step) -
             std::bit_cast<uint32_t>(step);
    } else {
      constexpr int kCut = 23 - MANTISSA;
      const uint32_t rounded = size + ((1u << (kCut - 1)) - 1) + ((size >> kCut) & 1);
      code = (rounded >> kCut) - (uint32_t(127 - kBias) << MANTISSA);
    }
    bits = uint8_t((u >> 24 & 0x80) | (code < LARGEST ? code : LARGEST));
  }
  explicit operator float() const {
    const uint32_t code = bits & 0x7fu, sign = uint32_t(bits & 0x80u) << 24;
    if (code > LARGEST) {  // e5m2 has an infinity, e4m3 does not
      const bool infinity = EXPONENT == 5 && code == LARGEST + 1u;
      return std::bit_cast<float>(sign | (infinity ? 0x7f800000u : 0x7fc00000u));
    }
    if (code >> MANTISSA)
      return std::bit_cast<float>(
          sign | ((code + (uint32_t(127 - kBias) << MANTISSA)) << (23 - MANTISSA)));
    const float unit = std::bit_cast<float>(uint32_t(128 - kBias - MANTISSA) << 23);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(code) * unit));
  }
};
using f8e4m3 = Float8<4, 3, 0x7e>;  // up to 448
using f8e5m2 = Float8<5, 2, 0x7b>;  // up to 57344

template <class T>
inline constexpr DType dtype_of = T::is_no_element_type;  // does not compile for other types
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<f8e4m3> = DType::f8e4m3;
template <>
inline constexpr DType dtype_of<f8e5m2> = DType::f8e5m2;

constexpr bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
constexpr bool is_float(DType dtype) { return dtype == DType::f32 || is_half(dtype); }
// Whether both 16-bit floats are among these types. No operation supports both together.
template <class... T>
inline constexpr bool mixes_halves = (std::is_same_v<T, bf16> || ...) &&
                                     (std::is_same_v<T, f16> || ...);
constexpr bool is_float8(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2; }
// Returns the largest finite number of an 8-bit type.
constexpr float largest_float8(DType dtype) { return dtype == DType::f8e4m3 ? 448.0f : 57344.0f; }

[[noreturn]] void throw_not_float(DType dtype);
[[noreturn]] void throw_not_float8(DType dtype);

// with_float(dtype, [&]<class T>() { ... }) calls f with T = float, bf16 or f16.
template <class F>
decltype(auto) with_float(DType dtype, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::bf16) return f.template operator()<bf16>();
  if (dtype == DType::f16) return f.template operator()<f16>();
  throw_not_float(dtype);
}
// The same with T = f8e4m3 or f8e5m2.
template <class F>
decltype(auto) with_float8(DType dtype, F&& f) {
  if (dtype == DType::f8e4m3) return f.template operator()<f8e4m3>();
  if (dtype == DType::f8e5m2) return f.template operator()<f8e5m2>();
  throw_not_float8(dtype);
}

}  // namespace mtrain
