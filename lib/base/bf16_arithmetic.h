// How a CPU multiplies two bf16 operands. The methods differ in the last bits of a GEMM. Therefore
// all ranks of a run use the same one from the first step to the last (run/bf16_choice.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace mtrain {

enum class Bf16Arithmetic : uint8_t {
  widened,       // converted to fp32; every CPU supports it
  dot_products,  // pairs of bf16 at once, with AVX512_BF16
  tiles,         // matrices of bf16 at once, with AMX
};

constexpr std::string_view bf16_arithmetic_name(Bf16Arithmetic a) {
  switch (a) {
    case Bf16Arithmetic::dot_products: return "dot_products";
    case Bf16Arithmetic::tiles: return "tiles";
    default: return "widened";
  }
}

inline std::optional<Bf16Arithmetic> parse_bf16_arithmetic(std::string_view name) {
  for (const auto a :
       {Bf16Arithmetic::widened, Bf16Arithmetic::dot_products, Bf16Arithmetic::tiles})
    if (bf16_arithmetic_name(a) == name) return a;
  return std::nullopt;
}

}  // namespace mtrain
