// The RMSNorms of queries and keys: of each head, or of all heads as one (OLMo et al. 2025, "2 OLMo
// 2 Furious"). Ranks of tensor parallelism that share the heads add up the sums of their parts.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/attention_core.h"
#include "model/param/parameters.h"
#include "model/tensor_parallel.h"
#include "ops/norm.h"
#include "spec/model_spec.h"

namespace mtrain::model {

class HeadNorms {
 public:
  struct Statistics {
    Tensor rstd_q, rstd_k;
  };

  // Declares the norms' parameters in `unit`: `name`.q_norm and `name`.k_norm in `tensors`. `heads`
  // are those of this rank.
  HeadNorms(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
            const std::string& name, const spec::NormSpec& norm, spec::HeadNorm kind,
            std::shared_ptr<TensorParallel> tensor, const HeadConfig& heads);
  // Returns a copy of raw_TN with normalized queries and keys.
  Tensor forward(Step& step, const Tensor& raw_TN, Statistics& statistics) const;
  // Overwrites the gradient of forward()'s result with that of raw_TN. If dqkv_TN has memory for
  // the maximum, the gradients of raw queries and keys are entered into it.
  void backward(Step& step, const Tensor& raw_TN, const Statistics& statistics,
                const ops::Written& dqkv_TN) const;

 private:
  ops::NormWeights weights(const Parameter& p) const;
  bool shares_rows() const { return q_.as_one && tensor_->size() > 1; }
  // What this rank's sums are part of. Ranks that have the same kv head count its elements once
  // each, in the sums as in the width; and each has a part of the gradients of its keys.
  ops::SharedRows shared(const Tensor& sum_2T, int64_t which, const ops::HeadRange& range) const;

  const std::shared_ptr<TensorParallel> tensor_;
  const ops::HeadRange q_, k_;
  const float eps_;
  const bool plus_one_;
  Parameter *q_norm_, *k_norm_;
};

}  // namespace mtrain::model
