// The activation of an MLP.
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain::spec {

// gelu is the exact form by erf, and gelu_tanh the approximation of GPT-2. The others are gated:
// silu(gate) * up, and gelu_tanh(gate) * up (Gemma).
enum class Activation { swiglu, gelu, gelu_tanh, geglu };
// The names after the fourth are Hugging Face's.
constexpr auto enum_names(Activation) {
  return std::array{EnumName{Activation::swiglu, "swiglu"},
                    EnumName{Activation::gelu, "gelu"},
                    EnumName{Activation::gelu_tanh, "gelu_tanh"},
                    EnumName{Activation::geglu, "geglu"},
                    EnumName{Activation::swiglu, "silu"},
                    EnumName{Activation::gelu_tanh, "gelu_new"},
                    EnumName{Activation::gelu_tanh, "gelu_pytorch_tanh"}};
}

constexpr bool is_gated(Activation a) { return a == Activation::swiglu || a == Activation::geglu; }

}  // namespace mtrain::spec
