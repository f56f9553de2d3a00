// The GEMMs of a transformer layer and the passes in which each runs. The plan, the model and
// tensor parallelism identify a GEMM by these two enums.
#pragma once
#include <array>
#include <cstddef>

namespace mtrain {

// Attention's two projections, then the MLP's two.
enum class LayerGemm { qkv, proj, fc1, fc2 };
inline constexpr std::array kLayerGemms{LayerGemm::qkv, LayerGemm::proj, LayerGemm::fc1,
                                        LayerGemm::fc2};

// fprop computes the output, dgrad the gradient of the input, wgrad the gradient of the weight.
enum class Pass { fprop, dgrad, wgrad };
inline constexpr std::array kPasses{Pass::fprop, Pass::dgrad, Pass::wgrad};

// A table of one value for each GEMM in each pass.
template <class T>
struct GemmTable {
  std::array<std::array<T, kPasses.size()>, kLayerGemms.size()> values{};

  constexpr T& at(LayerGemm gemm, Pass pass) { return values[size_t(gemm)][size_t(pass)]; }
  constexpr const T& at(LayerGemm gemm, Pass pass) const {
    return values[size_t(gemm)][size_t(pass)];
  }
};

}  // namespace mtrain
