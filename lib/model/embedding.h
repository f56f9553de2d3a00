// Token embedding, with learned positions where the model has them.
#pragma once
#include "model/model_impls.h"
#include "model/norm.h"
#include "ops/embedding.h"

namespace mtrain::model {

// Returns this rank's part of a table of the vocabulary's rows, which the ranks of tensor
// parallelism divide.
ParamSpec vocabulary_part(const spec::TensorSpec& table, const ModelImpls& impls);
// Declares the token table, the first parameter of its unit. `copy`: see ParamSpec::copy.
Parameter* add_table(ParamStore& params, const spec::ModelSpec& model, const ModelImpls& impls,
                     bool copy);
// Returns the token table, or null if this rank has none.
Parameter* token_table(ParamStore& params);

class Embedding {
 public:
  // `table_alone`: the token table has a unit of its own, apart from the learned positions.
  Embedding(ParamStore& params, const spec::ModelSpec& model, const ModelImpls& impls = {},
            bool table_alone = false);
  // Reads a token table that is declared already, and no learned positions.
  Embedding(Parameter* table, const spec::ModelSpec& model, const ModelImpls& impls);
  // Returns the embeddings (T, H) of the ids; under sequence parallelism, this rank's rows of them.
  // `segment` is the key of the dropout.
  Tensor forward(Step& step, const Tensor& id_T, const SegmentId& segment = kSegment);
  // Pushes the gradients of the tables to step.wgrad. d_TH is dL/d(what forward() returned).
  void backward(Step& step, const Tensor& id_T, const Tensor& d_TH);
  // Adds to the gradients at once, whether or not step.wgrad holds entries. `completes`: nothing
  // else of the micro-batch adds to them.
  void add_gradient(Step& step, const Tensor& id_T, const Tensor& d_TH, const SegmentId& segment,
                    bool completes);
  Parameter* table() const { return table_; }
  std::vector<ParamUnit*> units() const;

 private:
  static constexpr SegmentId kSegment{SegmentKind::embedding};

  WgradQueue::Entry gradients(Step& step, const Tensor& id_T, const Tensor& d_TH,
                              const SegmentId& segment);
  Tensor look_up(Step& step, const Tensor& id_T);
  ops::VocabularyShard shard() const;
  // Returns what multiplies token embeddings that are computed in a type: rounded to it.
  float scale(DType dtype) const;

  const float scale_, dropout_;
  std::shared_ptr<TensorParallel> tensor_;
  Parameter *table_, *positions_ = nullptr;
};

}  // namespace mtrain::model
