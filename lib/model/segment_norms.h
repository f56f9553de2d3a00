// What stands between a segment and the residual stream: the norm of what it reads, and the norm,
// the multiplier and the dropout of what it adds. A layer may lack either norm (spec::LayerSpec).
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "model/flow.h"
#include "model/linear.h"
#include "model/norm.h"

namespace mtrain::model {

// Without a norm, the segment reads the residual stream itself.
class InputNorm {
 public:
  // Declares the norm's parameters in `unit`.
  InputNorm(ParamStore& params, UnitId unit, const std::string& name, const spec::ModelSpec& model,
            const spec::LayerSpec& layer, const TensorParallel& tensor);
  // Returns what of a linear's wish forward() can do. Nothing writes the residual stream for it.
  ops::Float8Write write(const ops::Float8Write& wish) const {
    return norm_ ? wish : ops::Float8Write{};
  }
  // Without a norm, sum_TH and y_TH of the result are the same tensor.
  ops::NormResult forward(Step& step, const Hidden& h, const ops::Float8Write& write = {}) const;
  // Returns dL/d(residual stream): dresidual_TH and what comes through the norm. Without one, it is
  // in dy_TH's place.
  HiddenGradient backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                          const Tensor& dresidual_TH, const ops::Float8Write& write) const;

 private:
  std::optional<Norm> norm_;
};

class SegmentOutput {
 public:
  // Declares the norm's parameters in `unit`. `segment` is the key of the dropout.
  SegmentOutput(ParamStore& params, UnitId unit, const std::string& name,
                const spec::ModelSpec& model, const spec::LayerSpec& layer,
                std::shared_ptr<TensorParallel> tensor, const SegmentId& segment);
  // Returns what is added to the residual stream; it may be in out_TH's place. `kept` gets what
  // backward() needs: nothing without a norm. The norm's output is not part of it.
  Tensor forward(Step& step, const Tensor& out_TH, ops::NormResult& kept) const;
  // Returns what the kernel that writes the gradient of the residual stream is to do for `last`,
  // the linear that makes out_TH.
  ops::Float8Write gradient_write(const Linear& last) const {
    return norm_ || scale_ != 1 || dropout_ > 0 ? ops::Float8Write{} : last.gradient_write();
  }
  // Returns dL/d out_TH. `last` (optional) is the linear that reads it.
  WrittenGradient backward(Step& step, const HiddenGradient& d, const ops::NormResult& kept,
                           const Linear* last) const;

 private:
  int64_t first_row(const Step& step) const { return tensor_->first_row(step.seq.T()); }

  const std::shared_ptr<TensorParallel> tensor_;
  const SegmentId segment_;
  const float scale_, dropout_;
  std::optional<Norm> norm_;
};

}  // namespace mtrain::model
