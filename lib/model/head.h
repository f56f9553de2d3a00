// Final norm, output projection and loss. The loss runs over chunks of tokens, and its gradient is
// computed in the same pass, so that the logits of a micro-batch never exist at once.
#pragma once
#include "model/norm.h"
#include "model/parts.h"

namespace mtrain {

struct LossRequest {
  Tensor label_T;        // int32; negative: masked
  Tensor total;          // fp64, one element: the summed loss of all unmasked tokens is added to it
  float grad_scale = 1;  // gradient of the reported loss with respect to a token's loss: 1 /
                         // unmasked tokens of the global batch
};

class Head {
 public:
  // `tied`: the embedding's table, or null for an output matrix of its own.
  Head(ParamStore& params, const GptConfig& c, Parameter* tied, const ModelParts& parts);
  void loss(Step& step, const Hidden& h,
            const LossRequest& request);  // stashes the gradient where step.training
  Tensor backward(Step& step);            // gradient of h
  // (T, this rank's rows of the padded vocabulary); stashes nothing.
  Tensor logits(Step& step, const Hidden& h);

 private:
  void cross_entropy(Step& step, const Tensor& logits_TV, const Tensor& label_T,
                     const Tensor& loss_T, float grad_scale);

  GptConfig c_;
  std::shared_ptr<TensorParallel> tensor_;
  Norm norm_;
  Parameter* output_;
  bool tied_;
};

}  // namespace mtrain
