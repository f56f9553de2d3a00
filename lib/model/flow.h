// A Flow is what the segments of a pass hand on: the residual stream in forward, its gradient in
// backward, and what the segments of one layer hand each other beside it.
#pragma once
#include <memory>
#include <utility>

#include "model/experts/token_dispatcher.h"
#include "model/norm.h"

namespace mtrain::model {

struct HiddenGradient {
  Tensor d_TH;
  // The segment's gradient_write(), if the kernel that wrote d_TH was given it; and d_TH in 8 bits,
  // if that asked for it.
  ops::Float8Write write = {};
  Tensor quantized_TH = {};
};

struct SharedExpertActivations;

// What the segments of a layer with experts hand each other.
struct ExpertFlow {
  Tensor x_TH = {};  // the norm's output
  Tensor dx_TH = {};
  Tensor dout_TH = {};  // in backward: the gradient of the sum of the experts' outputs
  // The rows of tokens between router, experts and sum: in forward the experts' inputs, then their
  // outputs; in backward the gradients of both.
  ExpertRows rows = {};
  std::shared_ptr<TokenRoute> route = {};  // where the rows go
  ExpertRows again = {};  // in backward: the experts' inputs, where they were not kept
  // In the place of rows and again from the dispatch on, where these travel in chunks.
  std::shared_ptr<ChunkedRows> chunks = {}, chunks_again = {};
  // A shared expert that computes in parts, while rows travel, keeps these between the parts.
  std::shared_ptr<SharedExpertActivations> shared = {};
};

struct Flow {
  Hidden h = {};          // in forward
  HiddenGradient d = {};  // in backward
  ExpertFlow experts = {};

  static Flow forward(Hidden h) { return {.h = std::move(h)}; }
  static Flow backward(HiddenGradient d) { return {.d = std::move(d)}; }
};

}  // namespace mtrain::model
