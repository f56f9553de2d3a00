// Final norm, output projection and loss. The loss runs over chunks of tokens, and its gradient is
// computed in the same pass, so that the logits of a micro-batch never exist at once.
#pragma once
#include "model/model_impls.h"
#include "model/norm.h"

namespace mtrain::model {

struct LossRequest {
  Tensor label_T;        // int32; negative: masked
  Tensor total;          // fp64, one element: the summed loss of all unmasked tokens is added to it
  float grad_scale = 1;  // gradient of the reported loss with respect to a token's loss: 1 /
                         // unmasked tokens of the global batch
  Tensor grad_scale_1 = {};  // fp32, one element, optional: the same, read when the launch runs
};

class Head {
 public:
  // With tied embeddings the output layer multiplies with the embedding's table; `own_table`: with
  // a copy of it, as the embedding is on another rank.
  Head(ParamStore& params, const GptConfig& c, const ModelImpls& parts, bool own_table = false);
  void loss(Step& step, const Hidden& h,
            const LossRequest& request);  // stashes the gradient where step.training
  Tensor backward(Step& step);            // returns dL/dh (T, H)
  // (T, this rank's rows of the padded vocabulary); stashes nothing.
  Tensor logits(Step& step, const Hidden& h);

  ParamUnit* unit() const { return norm_.unit(); }          // of its own parameters
  ParamUnit* output_unit() const { return output_->unit; }  // unit(), or that of a tied table

 private:
  void cross_entropy(Step& step, const Tensor& logits_TV, const Tensor& label_T,
                     const Tensor& loss_T, const LossRequest& request);

  GptConfig c_;
  std::shared_ptr<TensorParallel> tensor_;
  int64_t logits_rows_;  // 0: all rows at once
  Norm norm_;
  Parameter* output_;
  bool completes_;  // nothing else on this rank adds to the gradient of `output_`
};

}  // namespace mtrain::model
