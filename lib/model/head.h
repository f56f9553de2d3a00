// Final norm, output projection and loss. The loss runs over chunks of tokens, and its gradient is
// computed in the same pass, so that the logits of a whole micro-batch never exist at once.
#pragma once
#include <optional>
#include <vector>

#include "model/model_impls.h"
#include "model/norm.h"
#include "ops/operand.h"

namespace mtrain::model {

struct LossRequest {
  Tensor label_T;  // int32; negative: masked
  Tensor total;    // fp64, one element: the summed loss of all unmasked tokens is added to it
  // The gradient of the reported loss with respect to a token's loss: 1 / (unmasked tokens of the
  // global batch).
  float grad_scale = 1;
  // Optional: the same value in device memory, fp32, one element, read when the launch runs.
  Tensor grad_scale_1 = {};
  // The same for each depth of multi-token prediction, whose labels the micro-batch has.
  struct OfDepth {
    Tensor total;
    float grad_scale = 1;
  };
  std::vector<OfDepth> depths = {};
};

class Head {
 public:
  // What a stage has of the head. Two stages may have one each.
  struct Parts {
    bool norm = true, output = true;
  };
  // With tied embeddings the output layer multiplies by the token table. `own_table`: by a copy of
  // it, since the embedding is on another rank.
  Head(ParamStore& params, const spec::ModelSpec& model, const ModelImpls& impls,
       const Parts& parts, bool own_table = false);
  // Adds the loss to request.total. Pushes the gradient to step.stash if step.training. Returns the
  // rows of the final norm if multi-token prediction reads them, else an absent tensor.
  Tensor loss(Step& step, const Hidden& h, const LossRequest& request);
  // Does so for rows that are normalized already. Returns the gradient of these rows if
  // step.training. `last`: the micro-batch has no later loss.
  Tensor output_loss(Step& step, Tensor y_TH, const LossRequest& request, bool last);
  // Computes the final norm alone. Its backward() needs the gradient of the result.
  Tensor normalize(Step& step, const Hidden& h);
  // Adds the losses of several depths. x_TH has the normalized rows of each, one depth below the
  // other. Pushes their gradient to step.stash if step.training; rows_backward() returns it.
  void losses_of_rows(Step& step, const Tensor& x_TH, const std::vector<LossRequest>& depths);
  Tensor rows_backward(Step& step);
  // Returns dL/dh (T, H). dy_TH (optional) is the gradient of what loss() returned.
  ops::Written backward(Step& step, const ops::Destination& to, const Tensor& dy_TH = {});
  // Returns the logits in fp32, (T, padded vocabulary): of `rows` only, if that list is not empty.
  // Stashes nothing. Under tensor parallelism every rank gets the logits of the whole vocabulary.
  Tensor logits(Step& step, const Hidden& h, const std::vector<int64_t>& rows);

  // The unit of the head's own parameters.
  ParamUnit* unit() const { return norm_ ? norm_->unit() : output_->unit; }
  // The unit of the output layer's weight: unit(), or the unit of a tied table.
  ParamUnit* output_unit() const { return output_->unit; }

 private:
  // Returns y in the type of the output layer's weight.
  Tensor in_weights_type(Stream& stream, const Tensor& y_TH) const;
  void scale_logits(Stream& stream, const Tensor& y_TH) const;
  // Writes the loss of every token, and over the logits their gradient if step.training.
  void token_losses(Step& step, const Tensor& logits_TV, const Tensor& label_T,
                    const Tensor& loss_T, const LossRequest& request);
  void cross_entropy(Step& step, const Tensor& logits_TV, const Tensor& label_T,
                     const Tensor& loss_T, const LossRequest& request);

  const int64_t vocab_;
  const float logit_scale_;
  const float logit_cap_;  // 0: none
  std::shared_ptr<TensorParallel> tensor_;
  int64_t logits_rows_;  // tokens in a chunk; 0: all
  std::optional<DType> logits_dtype_;
  std::optional<Norm> norm_;
  Parameter* output_ = nullptr;
  bool completes_ = false;  // whether nothing else on this rank adds to the gradient of `output_`
};

}  // namespace mtrain::model
