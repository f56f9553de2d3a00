// Token embedding, with learned positions where the model has them.
#pragma once
#include "model/model_impls.h"
#include "model/norm.h"

namespace mtrain::model {

// The vocabulary's rows, padding included, over the ranks.
ShardSpec vocabulary_shard(const TensorParallel& tensor, const GptConfig& c);

// Declares the token table, the first parameter of its unit. `copy` says that another rank of the
// pipeline has it as well, and counts and saves it.
Parameter* add_table(ParamStore& params, const GptConfig& c, const TensorParallel& tensor,
                     bool copy);
Parameter* token_table(ParamStore& params);  // null where this rank has none

class Embedding {
 public:
  // `table_alone`: in a unit of its own.
  Embedding(ParamStore& params, const GptConfig& c, const ModelImpls& parts = {},
            bool table_alone = false);
  Tensor forward(Step& step, const Tensor& id_T);
  void backward(Step& step, const Tensor& id_T, const Tensor& d_TH);
  Parameter* table() const { return table_; }
  std::vector<ParamUnit*> units() const;

 private:
  Tensor look_up(Step& step, const Tensor& id_T);
  ops::VocabularyShard shard() const;

  GptConfig c_;
  std::shared_ptr<TensorParallel> tensor_;
  Parameter *table_, *positions_ = nullptr;
};

}  // namespace mtrain::model
