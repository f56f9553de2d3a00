// Token embedding, with learned positions where the model has them.
#pragma once
#include "model/norm.h"
#include "model/parts.h"

namespace mtrain {

// The vocabulary's rows, padding included, over the ranks.
Cut vocabulary_cut(const TensorParallel& tensor, const GptConfig& c);

inline constexpr const char* kTableName = "embedding.weight";

// Declares the table. `copy`: another rank of the pipeline has it, too, counts and saves it.
Parameter* add_table(ParamStore& params, const GptConfig& c, const TensorParallel& tensor,
                     bool copy);

class Embedding {
 public:
  // `table_alone`: in a unit of its own.
  Embedding(ParamStore& params, const GptConfig& c, const ModelParts& parts = {},
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

}  // namespace mtrain
