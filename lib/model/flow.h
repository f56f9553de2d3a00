// A Flow travels through the segments of a pass: the residual stream in forward, its gradient in
// backward, and the tensors that only the segments of one layer exchange.
#pragma once
#include <memory>
#include <utility>

#include "model/experts/token_dispatcher.h"
#include "model/norm.h"
#include "ops/operand.h"

namespace mtrain::model {

struct SharedExpertActivations;

// The tensors that the segments of a layer with experts exchange.
struct ExpertFlow {
  Tensor x_TH = {};  // the norm's output
  Tensor dx_TH = {};
  Tensor dout_TH = {};  // in backward: the gradient of the sum of the experts' outputs
  // The rows that go from the router to the experts and from there to the sum of each token. In
  // forward these are the experts' inputs, then their outputs; in backward the gradients of both.
  ExpertRows rows = {};
  std::shared_ptr<TokenRoute> route = {};  // where the rows go
  ExpertRows inputs = {};  // in backward: the experts' inputs, if they were not kept
  // Used from the dispatch on instead of rows and inputs, if these travel in chunks.
  std::shared_ptr<ChunkedRows> chunks = {}, input_chunks = {};
  // A shared expert that computes in parts, while rows travel, keeps these between the parts.
  std::shared_ptr<SharedExpertActivations> shared = {};
};

struct Flow {
  Hidden h = {};           // in forward
  ops::Written d_TH = {};  // in backward, as its kernel has written it for the next segment
  ExpertFlow experts = {};

  static Flow forward(Hidden h) { return {.h = std::move(h)}; }
  static Flow backward(ops::Written d_TH) { return {.d_TH = std::move(d_TH)}; }
};

}  // namespace mtrain::model
