// What stands between a segment and the residual stream: the norm of what it reads, and the norm,
// the multiplier and the dropout of its result. A layer may lack either norm (spec::LayerSpec).
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/flow.h"
#include "model/linear.h"
#include "model/norm.h"
#include "ops/norm.h"

namespace mtrain::model {

// Without a norm, the segment reads the residual stream itself.
class InputNorm {
 public:
  // Declares the norm's parameters in `unit`: those of `name`.norm in `tensors`, if it has any.
  InputNorm(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
            const std::string& name, const spec::NormSpec& norm, const TensorParallel& tensor);
  // `to` is the destination of the linear that reads the result. Without a norm, nothing is done
  // for it, and sum_TH and y_TH of the result are the same tensor.
  ops::NormResult forward(Step& step, const Hidden& h, const ops::Destination& to = {}) const;
  // Returns dL/d(residual stream): the sum of dresidual_TH and the gradient through the norm.
  // Without a norm, it overwrites dy_TH, and nothing is done for `to`.
  ops::Written backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                        const Tensor& dresidual_TH, const ops::Destination& to) const;

 private:
  std::optional<Norm> norm_;
};

class SegmentOutput {
 public:
  // Declares the norm's parameters in `unit`: those of `name`.out_norm in `tensors`, if it has any.
  // `segment` is the key of the dropout.
  SegmentOutput(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
                const std::string& name, const spec::ModelSpec& model,
                std::shared_ptr<TensorParallel> tensor, const SegmentId& segment);
  // Returns what is added to the residual stream; it may overwrite out_TH. `kept` gets what
  // backward() needs, without the norm's output. It stays empty without a norm.
  Tensor forward(Step& step, const Tensor& out_TH, ops::NormResult& kept) const;
  // Returns what the kernel that writes the gradient of the residual stream does for `last`, the
  // linear that computes out_TH.
  ops::Destination gradient(const Linear& last) const {
    return norm_ || scale_ != 1 || dropout_ > 0 ? ops::Destination{} : last.gradient();
  }
  // Returns dL/d out_TH. `last` (optional) is the linear that reads it.
  ops::Written backward(Step& step, ops::Written d_TH, const ops::NormResult& kept,
                        const Linear* last) const;

 private:
  int64_t first_row(const Step& step) const { return tensor_->first_row(step.seq.T()); }

  const std::shared_ptr<TensorParallel> tensor_;
  const SegmentId segment_;
  const float scale_, dropout_;
  std::optional<Norm> norm_;
};

}  // namespace mtrain::model
