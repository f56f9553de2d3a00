// y = x W^T + b. The interface that tensor parallelism implements; forward, input gradient and
// weight gradient are separate calls, so that schedules and overlap can move the last.
#pragma once
#include <memory>
#include <string>

#include "model/fp8.h"
#include "model/parameters.h"
#include "model/step.h"

namespace mtrain {

// The gradient of a linear's output, from dgrad() to wgrad(), which takes what the first has left
// of it: for 8-bit products the scale, and the transpose, in the gradient's place where nothing
// else takes that.
struct OutputGradient {
  Tensor dy_TO;
  ops::Float8Scale scale = {};   // absent: not found yet
  ops::Float8Tensor dy_OT = {};  // absent: to be made
};

class Linear {
 public:
  virtual ~Linear() = default;
  virtual Tensor forward(Step& step, const Tensor& x_TI) = 0;
  // The gradient of x. `dy` becomes what wgrad() takes: where ranks have rows of it each, all of
  // them; and no more than wgrad() needs.
  virtual Tensor dgrad(Step& step, OutputGradient& dy) = 0;
  virtual void wgrad(Step& step, const Tensor& x_TI,
                     const OutputGradient& dy) = 0;  // pushes to step.wgrad
  // Both, for an x that is there before the gradient: communication can hide behind either.
  virtual Tensor backward(Step& step, const Tensor& x_TI, OutputGradient dy) {
    const Tensor dx = dgrad(step, dy);
    wgrad(step, x_TI, dy);
    return dx;
  }
  // With a gelu, in the tanh form, behind the output: y and what it is of; or before the input: the
  // gradient of what that is of, x_TI, and the input again.
  virtual ops::GeluResult forward_gelu(Step& step, const Tensor& x_TI) {
    const Tensor y = forward(step, x_TI);
    return {y, ops::gelu(step.compute, y, true)};
  }
  virtual ops::GeluGradients dgrad_gelu(Step& step, OutputGradient& dy, const Tensor& x_TI) {
    const Tensor d = dgrad(step, dy);  // the kernel overwrites it with the input
    return {ops::gelu_backward(step.compute, x_TI, d, d, true), d};
  }
};

// Which product of a layer ("qkv", "proj", "fc1", "fc2"), and the names of its three matmuls in
// profiles and traces; string literals.
struct LinearNames {
  const char *product, *fwd, *dgrad, *wgrad;
};

struct LinearSpec {
  UnitId unit;
  std::string name;  // parameters are `name`.weight (O, I) and `name`.bias (O)
  int64_t I, O;      // of all ranks
  bool bias;
  float std;  // of the initial weight
  LinearNames names;
  std::vector<Cut::Section> sections = {};  // of O, where its rows may be cut
  std::shared_ptr<Float8Scaling> fp8 = {};  // its products are in 8 bits
};

// A rank's parameters of a linear, and the products with them.
class LinearProducts {
 public:
  LinearProducts(ParamStore& params, const LinearSpec& spec, const Cut& weight = {},
                 const Cut& bias = {});

  Tensor forward(Step& step, const Tensor& x_TI, bool bias) const;
  void forward_into(Step& step, const Tensor& x_TI, const Tensor& y_TO, bool bias) const;
  ops::GeluResult forward_gelu(Step& step, const Tensor& x_TI) const;  // bf16 or fp32 products
  ops::GeluGradients dgrad_gelu(Step& step, const Tensor& dy_TO, const Tensor& x_TI) const;
  bool in_8_bits() const { return bool(fp8_); }
  // Of the whole gradient; and of some rows of it, which leave nothing for wgrad().
  Tensor dgrad(Step& step, OutputGradient& dy) const;
  void dgrad_into(Step& step, const Tensor& dy_TO, const Tensor& dx_TI) const;
  void wgrad(Step& step, const Tensor& x_TI, const OutputGradient& dy) const;  // to step.wgrad
  int64_t I() const { return weight_->shape[1]; }                              // of this rank
  int64_t O() const { return weight_->shape[0]; }

 private:
  ops::Float8Tensor shared_rows(Step& step, OutputGradient& dy) const;
  void dgrad_float8(Stream& on, const ops::Float8Tensor& dy_TO, const Tensor& dx_TI) const;
  void wgrad_into(Stream& on, const Tensor& x_TI, const OutputGradient& dy) const;
  ops::Float8Tensor quantized(Stream& on, Float8Scaling::Role role, const Tensor& x,
                              bool transposed, bool record) const {
    return fp8_->quantize(on, number_, role, x, fp8_->scale(on, number_, role, x), transposed,
                          record);
  }

  LinearNames names_;
  Parameter *weight_, *bias_ = nullptr;
  std::shared_ptr<Float8Scaling> fp8_;
  int64_t number_ = 0;  // among fp8_'s
};

std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec);

}  // namespace mtrain
