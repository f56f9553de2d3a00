// A linear layer, y = x W^T + b, with weight W (O, I) and bias b (O). Forward, the gradient of the
// input and the gradient of the weight are separate calls, so that schedules and overlap can move
// the weight's gradient. Tensor parallelism implements the same interface (lib/parallel/tensor).
//
// What a rank passes and gets, for T tokens and P ranks of tensor parallelism:
//
//                      x, dx        y, dy        W            under sequence parallelism
//   plain              (T, I)       (T, O)       (O, I)
//   column-parallel    (T, I)       (T, O / P)   (O / P, I)   x and dx are (T / P, I)
//   row-parallel       (T, I / P)   (T, O)       (O, I / P)   y and dy are (T / P, O)
//
// Activations and their gradients are plain: fp32, bf16 or fp16. Gradients of W and b are fp32. A
// linear with quantized GEMMs quantizes their operands, or has the kernels that write x and dy do
// so: input() and gradient() say what these kernels do.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/layer_gemm.h"
#include "model/param/parameters.h"
#include "model/quantizer.h"
#include "model/step.h"
#include "ops/activation.h"

namespace mtrain::model {

struct InputGradient {
  Tensor dx_TI;      // dL/dx
  LinearOperand dy;  // dL/dy, reduced to what wgrad() needs
};

struct GeluOutput {
  Tensor y_TO;
  ops::Written gelu_TO;  // gelu(y)
};

struct GeluInputGradient {
  ops::Written du_TI;  // dL/du
  Tensor gelu_TI;      // gelu(u), which is the linear's input x
  LinearOperand dy;    // as in InputGradient
};

class Linear {
 public:
  virtual ~Linear() = default;

  // Return what the kernels that write x and dy do for the linear, to save separate passes over x
  // and dy; nothing if the linear has no use for it. What such a kernel returns goes to the next
  // forward() or dgrad(). `training`: a forward of training.
  virtual ops::Destination input(bool training) const = 0;
  virtual ops::Destination gradient() const = 0;

  // Returns y. Reduces x to what backward needs. If the caller drops x.value until backward, a
  // kernel must write it again as x.rewrite says. A recomputation takes the same operand.
  virtual Tensor forward(Step& step, LinearOperand& x_TI) = 0;
  // Returns dL/dx, and dL/dy for wgrad(). Under sequence parallelism a row-parallel linear gathers
  // dL/dy: it then has the rows of all ranks, (T, O). If the caller moves dL/dy in, its memory is
  // freed as soon as nothing needs it.
  virtual InputGradient dgrad(Step& step, LinearOperand dy_TO) = 0;
  // Pushes the gradients of W and b to step.wgrad, which runs them now or later and holds x and dy
  // until then. x is forward()'s.
  virtual void wgrad(Step& step, LinearOperand x_TI, LinearOperand dy_TO) = 0;
  // Calls dgrad() and wgrad(), and returns dL/dx. Prefer it if x exists before dy does: the
  // communication of each of the two can then hide behind the other.
  virtual Tensor backward(Step& step, LinearOperand x_TI, LinearOperand dy_TO) {
    InputGradient g = dgrad(step, std::move(dy_TO));
    wgrad(step, std::move(x_TI), std::move(g.dy));
    return g.dx_TI;
  }

  // Returns y and gelu(y), the tanh form, which is written for `to` if the kernel can.
  virtual GeluOutput forward_gelu(Step& step, LinearOperand& x_TI, const ops::Destination& to) {
    const Tensor y = forward(step, x_TI);
    return {y, ops::gelu(step.compute, y, true, to)};
  }
  // For a linear whose input is x = gelu(u), the tanh form. Returns dL/du, which is written for
  // `to` if the kernel can, and gelu(u), so that x need not be kept for wgrad().
  virtual GeluInputGradient dgrad_gelu(Step& step, LinearOperand dy_TO, const Tensor& u_TI,
                                       const ops::Destination& to) {
    InputGradient g = dgrad(step, std::move(dy_TO));
    // The kernel overwrites g.dx_TI with gelu(u).
    ops::Written du = ops::gelu_backward(step.compute, u_TI, g.dx_TI, g.dx_TI, true, to);
    return {std::move(du), g.dx_TI, std::move(g.dy)};
  }
};

// The A and B of an adapter, and the section of the linear's rows that it belongs to.
struct AdapterSpec {
  spec::TensorSpec a, b;
  spec::Rows rows;
};

struct LinearSpec {
  // `tensors` lists the linear's parameters, `name`.weight (O, I) and optionally `name`.bias (O).
  LinearSpec(UnitId unit, const std::vector<spec::TensorSpec>& tensors, const std::string& name,
             LayerGemm gemm, std::shared_ptr<Quantizer> quantizer);

  UnitId unit;
  std::string name;
  spec::TensorSpec weight;
  std::optional<spec::TensorSpec> bias;
  std::vector<AdapterSpec> adapters;
  LayerGemm gemm;  // which of a layer's linears it is; names its GEMMs in profiles and traces
  std::shared_ptr<Quantizer> quantizer;  // not null: its GEMMs are quantized
};

// A rank's part of a linear's parameters, and the GEMMs with them. I and O are the extents of that
// part. Nothing here communicates. input, gradient, forward, dgrad and wgrad are as in Linear.
class LinearGemms {
 public:
  // `weight` and `bias` say which part of the parameters this rank has.
  LinearGemms(ParamStore& params, const LinearSpec& spec, const ShardSpec& weight = {},
              const ShardSpec& bias = {});
  int64_t I() const { return weight_->shape[1]; }
  int64_t O() const { return weight_->shape[0]; }
  bool quantizes() const { return quantizer_->quantizes(); }

  ops::Destination input(bool training) const {
    return quantizer_->destination(Quantizer::Role::input, training);
  }
  ops::Destination gradient() const;
  // `bias`: add the bias, if there is one.
  Tensor forward(Step& step, LinearOperand& x_TI, bool bias) const;
  InputGradient dgrad(Step& step, LinearOperand dy_TO) const;
  void wgrad(Step& step, LinearOperand x_TI, LinearOperand dy_TO) const;

  // Compute a chunk of the rows. wgrad() then quantizes the full x and dy.
  void forward_into(Step& step, LinearOperand x_TI, const Tensor& y_TO, bool bias) const {
    multiply(step, x_TI, y_TO, bias);
  }
  void dgrad_into(Step& step, LinearOperand dy_TO, const Tensor& dx_TI) const;

  // Compute the GEMM and the gelu in one launch if the library can. Not for quantized GEMMs.
  GeluOutput forward_gelu(Step& step, const Tensor& x_TI) const;
  GeluInputGradient dgrad_gelu(Step& step, Tensor dy_TO, const Tensor& u_TI) const;

 private:
  // Returns memory for `columns` results for each row of x, in the type of activations.
  Tensor result(Stream& stream, const LinearOperand& x, int64_t columns) const;
  void multiply(Step& step, LinearOperand& x_TI, const Tensor& y_TO, bool bias) const;
  void wgrad_now(Stream& stream, LinearOperand x_TI, LinearOperand dy_TO) const;
  const char* name(Pass pass) const;

  const LayerGemm gemm_;
  Parameter *weight_, *bias_ = nullptr;
  std::optional<LinearQuantizer> quantizer_;
};

// The linear of a rank that has the whole weight. If other ranks have it, too, `weight` says so.
std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec,
                                     const ShardSpec& weight = {});

}  // namespace mtrain::model
