// Token embedding, with learned positions where the model has them.
#pragma once
#include "model/norm.h"

namespace mtrain {

class Embedding {
 public:
  Embedding(ParamStore& params, const GptConfig& c);
  Tensor forward(Step& step, const Tensor& id_T);
  void backward(Step& step, const Tensor& id_T, const Tensor& d_TH);
  Parameter* table() const { return table_; }

 private:
  GptConfig c_;
  Parameter *table_, *positions_ = nullptr;
};

}  // namespace mtrain
