// Token embedding, with learned positions where the model has them.
#pragma once
#include "model/norm.h"
#include "model/parts.h"

namespace mtrain {

// The vocabulary's rows, padding included, over the ranks.
Cut vocabulary_cut(const TensorParallel& tensor, const GptConfig& c);

class Embedding {
 public:
  Embedding(ParamStore& params, const GptConfig& c, const ModelParts& parts = {});
  Tensor forward(Step& step, const Tensor& id_T);
  void backward(Step& step, const Tensor& id_T, const Tensor& d_TH);
  Parameter* table() const { return table_; }

 private:
  Tensor look_up(Step& step, const Tensor& id_T);
  ops::VocabularyShard shard() const;

  GptConfig c_;
  std::shared_ptr<TensorParallel> tensor_;
  Parameter *table_, *positions_ = nullptr;
};

}  // namespace mtrain
