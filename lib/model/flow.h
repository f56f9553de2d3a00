// A Flow is what the segments of a pass hand on: the residual stream in forward, its gradient in
// backward, and what the segments of one layer hand each other beside it.
#pragma once
#include <any>
#include <utility>

#include "model/norm.h"

namespace mtrain::model {

struct HiddenGradient {
  Tensor d_TH;
  Tensor amax;  // the segment's gradient_amax(), if the kernel that wrote d_TH was given it
};

// What the segments of a layer with experts hand each other. T tokens, R rows of experts, K experts
// of a token, E experts
struct ExpertFlow {
  Tensor x_TH = {};  // the norm's output
  Tensor dx_TH = {};
  Tensor expert_TK = {}, weight_TK = {};  // the router's; in backward the weights' gradients
  // The rows of the experts, in forward before and after they compute, in backward their gradients;
  // and the weight of each row, or its gradient.
  Tensor rows_RH = {}, weight_R = {};
  Tensor first_E1 = {};  // expert e has the rows [first[e], first[e + 1])
  Tensor out_TH = {};    // the experts' outputs, added for each token; in backward its gradient
  Tensor again_RH = {};  // in backward: the rows of the experts' input, where they were not kept
  std::any route = {};   // the dispatcher's
};

struct Flow {
  Hidden h = {};          // in forward
  HiddenGradient d = {};  // in backward
  ExpertFlow experts = {};

  static Flow forward(Hidden h) { return {.h = std::move(h)}; }
  static Flow backward(Tensor d_TH, Tensor amax) {
    return {.d = {std::move(d_TH), std::move(amax)}};
  }
};

}  // namespace mtrain::model
