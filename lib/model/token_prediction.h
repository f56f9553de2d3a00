// Multi-token prediction (DeepSeek-AI 2024, "DeepSeek-V3"): two segments that stand before and
// after the attention and the MLP of a layer of depth k.
//
//   y of depth k - 1 -> norm ----------------------.
//   token t + k -> the model's embedding -> norm --+-> proj -> attention, MLP -> norm -> y
//                                                          y -> the model's output layer -> loss
//
// At depth 0, y is the result of the model's final norm. The embedding's columns come first. Every
// rank of tensor parallelism computes the norms and proj; under sequence parallelism, of its own
// rows. The input segment keeps the ids, and the output segment computes the gradient of its loss
// at once, as the head does, unless the head is in the next stage of a pipeline.
#pragma once
#include <memory>
#include <vector>

#include "model/embedding.h"
#include "model/head.h"
#include "model/segment.h"

namespace mtrain::model {

// What all depths share with the model. The Gpt fills it in after it has declared its parameters.
struct SharedByDepths {
  Embedding* embedding = nullptr;
  Head* head = nullptr;  // null: the losses are computed in the next stage
  // The output layer's weight is the token table.
  bool tied = false;
  // The embedding of the model is on another rank, so these segments complete the gradient of this
  // rank's copy of the table.
  bool copied = false;
};

// What a micro-batch has for each depth; depth k is element k - 1.
struct Predictions {
  std::vector<Tensor> input_T = {};      // int32: the ids of the tokens that are k later
  std::vector<LossRequest> losses = {};  // empty in backward
  int64_t depths() const { return int64_t(input_T.size()); }
};

std::unique_ptr<Segment> prediction_input(ParamStore& params, const spec::ModelSpec& model,
                                          int64_t layer, const ModelImpls& impls,
                                          const SharedByDepths& shared);
std::unique_ptr<Segment> prediction_output(ParamStore& params, const spec::ModelSpec& model,
                                           int64_t layer, const ModelImpls& impls,
                                           const SharedByDepths& shared);

}  // namespace mtrain::model
