// How the router of a layer with experts chooses and weighs them. kernels/router.h has the
// arithmetic; the model's description and the kernels share these structs.
#pragma once
#include <array>
#include <cstdint>

#include "base/enum_name.h"

namespace mtrain {

enum class RouterScore { softmax, sigmoid };
constexpr auto enum_names(RouterScore) {
  return std::array{EnumName{RouterScore::softmax, "softmax"},
                    EnumName{RouterScore::sigmoid, "sigmoid"}};
}

// How a token's experts and their weights follow from its logits.
struct RouterForm {
  RouterScore score = RouterScore::softmax;
  bool over_chosen = false;  // the softmax is over the K chosen logits, not over all E
  bool normalize = false;    // a token's weights are divided by their sum
  float scale = 1;           // a factor on all weights
  // Experts form groups of equal size, and a token's experts are chosen from the best groups alone.
  // A group's score is the sum of its best `group_experts` scores; 0: of K / best_groups, at
  // least 1.
  int64_t groups = 1, best_groups = 1, group_experts = 0;

  bool operator==(const RouterForm&) const = default;
};

// The weights of the router's losses: balance over a micro-batch, over each sample, and with the
// loads of the global batch before; and the z-loss.
struct RouterLossCoeffs {
  float batch = 0, sample = 0, global = 0, z = 0;

  bool any() const { return batch != 0 || sample != 0 || global != 0 || z != 0; }
  bool operator==(const RouterLossCoeffs&) const = default;
};

}  // namespace mtrain
