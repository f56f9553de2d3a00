#include "model/norm.h"
#include "ops/elementwise.h"

namespace mtrain::model {

Tensor materialize(Step& step, const Hidden& h) {
  return h.delta_TH ? ops::add(step.compute, h.x_TH, h.delta_TH) : h.x_TH;
}

Norm::Norm(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
           const std::string& name, const spec::NormSpec& norm, const TensorParallel& tensor)
    : kind_(norm.kind), eps_(float(norm.eps)), plus_one_(norm.plus_one) {
  weight_ = params.add(unit, part_of(tensor_of(tensors, name + ".weight"), tensor.replicated()));
  if (norm.bias)
    bias_ = params.add(unit, part_of(tensor_of(tensors, name + ".bias"), tensor.replicated()));
}

// A unit in fp32 has the norm's weights in fp32, and kernels read them in the activations' type.
ops::NormWeights Norm::weights(Stream& stream, DType dtype) const {
  const auto read = [&](const Parameter* p) {
    return p ? ops::in_dtype(stream, p->value, dtype) : Tensor();
  };
  return {kind_, read(weight_), read(bias_), eps_, plus_one_};
}

ops::NormResult Norm::forward(Step& step, const Hidden& h, const ops::Destination& to) const {
  return ops::norm(step.compute, weights(step.compute, h.x_TH.dtype()), h.x_TH, h.delta_TH, to);
}

ops::Written Norm::backward(Step& step, const ops::NormResult& forward, const Tensor& dy_TH,
                            const Tensor& dresidual_TH, const ops::Destination& to) const {
  ops::Written dx = ops::norm_backward(step.compute, weights(step.compute, dy_TH.dtype()), forward,
                                       dy_TH, dresidual_TH, vector_grad(step.compute, *weight_),
                                       bias_ ? vector_grad(step.compute, *bias_) : Tensor(), to);
  step.wgrad.ready(*weight_);
  if (bias_) step.wgrad.ready(*bias_);
  return dx;
}

}  // namespace mtrain::model
