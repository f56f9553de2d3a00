// A Flow is what the segments of a pass hand on: the residual stream in forward, its gradient in
// backward, and what the segments of one layer hand each other beside it.
#pragma once
#include <any>
#include <utility>

#include "model/norm.h"

namespace mtrain::model {

struct HiddenGradient {
  Tensor d_TH;
  // The segment's gradient_write(), if the kernel that wrote d_TH was given it; and d_TH in 8 bits,
  // if that asked for it.
  ops::Float8Write write = {};
  Tensor quantized_TH = {};
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
  std::any route = {};   // the dispatcher's
};

struct Flow {
  Hidden h = {};          // in forward
  HiddenGradient d = {};  // in backward
  ExpertFlow experts = {};

  static Flow forward(Hidden h) { return {.h = std::move(h)}; }
  static Flow backward(ops::NormGradient d, const ops::Float8Write& write) {
    return {.d = {std::move(d.dx_TH), write, std::move(d.quantized_TH)}};
  }
};

}  // namespace mtrain::model
