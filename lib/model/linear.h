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
// Activations and their gradients are fp32, bf16 or fp16; gradients of W and b are fp32. The same
// holds for linears with 8-bit GEMMs, whose calls quantize their operands. Where the scale is known
// before a kernel writes x or dy (input_write() and gradient_write() say so), the kernel quantizes
// it, and these calls take what it has written.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/layer_gemm.h"
#include "model/fp8.h"
#include "model/param/parameters.h"
#include "model/step.h"

namespace mtrain::model {

// dL/dy in the form that wgrad() takes. Under sequence parallelism a row-parallel linear's dgrad()
// gathers it: it then has the rows of all ranks, (T, O).
//   16 and 32 bits   dy_TO alone.
//   8 bits           dy_OT, quantized in the same read of dy as dgrad()'s operand. dy_TO, which has
//                    twice the bytes, is freed unless a bias needs its column sums.
//   8 bits, chunked  dy_TO alone: dgrad() has quantized its chunks one by one.
struct OutputGradient {
  Tensor dy_TO;
  ops::Float8Scale scale = {};   // absent: wgrad() finds it
  ops::Float8Tensor dy_OT = {};  // absent: wgrad() quantizes dy_TO
};

// How a linear's input is quantized under one scale of the tensor; otherwise nothing of it is used.
struct InputScale {
  InputScale() = default;
  // `write` is input_write(), as the input's kernel was given it.
  explicit InputScale(const ops::Float8Write& write)
      : amax(write.in_8_bits() ? Tensor() : write.amax),
        scale(write.scale),
        again{.scale = write.scale, .type = write.type} {}
  Tensor amax = {};             // what the input's kernel left for the first forward()
  ops::Float8Scale scale = {};  // else set by the first forward(); the calls after it take it
  ops::Float8Write again = {};  // what a kernel does that computes the input again
};

// dL/dy as its kernel has written it.
struct WrittenGradient {
  Tensor dy_TO;                 // absent if it was written in 8 bits alone
  ops::Float8Write write = {};  // gradient_write(), if the kernel was given it
  // In 8 bits, if write.in_8_bits(). It may be absent all the same: then the kernel has only
  // entered the maximum into the history.
  Tensor quantized_TO = {};
};

struct InputGradient {
  Tensor dx_TI;              // dL/dx
  OutputGradient for_wgrad;  // dL/dy
};

struct GeluOutput {
  Tensor y_TO, gelu_TO;  // y and gelu(y)
};

struct GeluInputGradient {
  Tensor du_TI;              // dL/du
  Tensor gelu_TI;            // gelu(u), which is the linear's input x
  OutputGradient for_wgrad;  // dL/dy
};

class Linear {
 public:
  virtual ~Linear() = default;

  // Return what the kernel that writes x or dy is to do for the linear, so that quantizing need not
  // read the tensor for that; nothing if the linear has no use for it. If the kernel is given it,
  // the next forward() or dgrad() must be given it, too. `training`: a forward of training.
  virtual ops::Float8Write input_write(bool training) const = 0;
  virtual ops::Float8Write gradient_write() const = 0;

  // Returns y. A recomputation is given the `scale` of the first forward. x may be in 8 bits, as
  // input_write() has asked for it.
  virtual Tensor forward(Step& step, const Tensor& x_TI, InputScale& scale) = 0;
  // Returns dL/dx, and dL/dy for wgrad(). If the caller moves dL/dy in, its memory is freed as soon
  // as nothing needs it.
  virtual InputGradient dgrad(Step& step, WrittenGradient dy) = 0;
  // Pushes the gradients of W and b to step.wgrad, which runs them now or later and holds x and dy
  // until then. `scale` is forward()'s.
  virtual void wgrad(Step& step, const Tensor& x_TI, const InputScale& scale,
                     OutputGradient dy) = 0;
  // Calls dgrad() and wgrad(), and returns dL/dx. Prefer it if x exists before dy does: the
  // communication of each of the two can then hide behind the other.
  virtual Tensor backward(Step& step, const Tensor& x_TI, const InputScale& scale,
                          WrittenGradient dy) {
    InputGradient g = dgrad(step, std::move(dy));
    wgrad(step, x_TI, scale, std::move(g.for_wgrad));
    return g.dx_TI;
  }

  // Returns y and gelu(y), the tanh form. `gelu_amax` (optional) gets the largest |gelu(y)|.
  virtual GeluOutput forward_gelu(Step& step, const Tensor& x_TI, InputScale& scale,
                                  const Tensor& gelu_amax) {
    const Tensor y = forward(step, x_TI, scale);
    return {y, ops::gelu(step.compute, y, true, gelu_amax)};
  }
  // For a linear whose input is x = gelu(u), the tanh form. Returns dL/du and gelu(u), so that x
  // need not be kept for wgrad(). `du_amax` (optional) gets the largest |dL/du|.
  virtual GeluInputGradient dgrad_gelu(Step& step, WrittenGradient dy, const Tensor& u_TI,
                                       const Tensor& du_amax) {
    InputGradient g = dgrad(step, std::move(dy));
    // The kernel overwrites g.dx_TI with gelu(u).
    const Tensor du = ops::gelu_backward(step.compute, u_TI, g.dx_TI, g.dx_TI, true, du_amax);
    return {du, g.dx_TI, std::move(g.for_wgrad)};
  }
};

struct LinearSpec {
  UnitId unit;
  std::string name;  // the parameters are `name`.weight (O, I) and `name`.bias (O)
  int64_t I, O;      // extents of the whole weight, over all ranks
  bool bias;
  float std;       // standard deviation of the initial weight
  LayerGemm gemm;  // which of a layer's linears it is; names its GEMMs in profiles and traces
  // How the O rows may be split over ranks; empty: anywhere.
  std::vector<ShardSpec::Section> sections = {};
  std::shared_ptr<Float8Scaling> fp8 = {};  // not null: its GEMMs are in 8 bits
};

// A rank's part of a linear's parameters, and the GEMMs with them. I and O are the extents of that
// part. Nothing here communicates. forward, dgrad and wgrad are as in Linear.
class LinearGemms {
 public:
  // `weight` and `bias` say which part of the parameters this rank has.
  LinearGemms(ParamStore& params, const LinearSpec& spec, const ShardSpec& weight = {},
              const ShardSpec& bias = {});
  int64_t I() const { return weight_->shape[1]; }
  int64_t O() const { return weight_->shape[0]; }
  bool in_8_bits() const { return bool(fp8_); }

  ops::Float8Write input_write(bool training) const {
    return write(Float8Scaling::Role::input, training);
  }
  ops::Float8Write gradient_write() const { return write(Float8Scaling::Role::gradient, true); }
  // `bias`: add the bias, if there is one.
  Tensor forward(Step& step, const Tensor& x_TI, InputScale& scale, bool bias) const;
  InputGradient dgrad(Step& step, WrittenGradient dy) const;
  void wgrad(Step& step, const Tensor& x_TI, const InputScale& scale, OutputGradient dy) const;

  // Compute a chunk of the rows. A dgrad in chunks leaves all of dy to wgrad() as it is.
  void forward_into(Step& step, const Tensor& x_TI, const Tensor& y_TO, bool bias) const;
  void dgrad_into(Step& step, const Tensor& dy_TO, const Tensor& dx_TI) const;

  // Compute the GEMM and the gelu in one launch if the library can. Not for 8-bit GEMMs.
  GeluOutput forward_gelu(Step& step, const Tensor& x_TI) const;
  GeluInputGradient dgrad_gelu(Step& step, Tensor dy_TO, const Tensor& u_TI) const;

 private:
  struct QuantizedGradient {
    ops::Float8Tensor rows_TO;  // for dgrad
    OutputGradient for_wgrad;
  };
  QuantizedGradient quantize_gradient(Step& step, WrittenGradient dy) const;
  ops::Float8Write write(Float8Scaling::Role role, bool record) const {
    return fp8_ ? fp8_->write(number_, role, record) : ops::Float8Write{};
  }
  // Returns the type of activations and their gradients.
  DType float_type() const { return weight_->value.dtype(); }
  // Returns the scale of x, whose largest size may have been left in `amax`.
  ops::Float8Scale scale_of(Stream& stream, Float8Scaling::Role role, const Tensor& x,
                            const Tensor& amax) const {
    return amax ? fp8_->scale_of_written(stream, role, amax)
                : fp8_->scale(stream, number_, role, x);
  }
  void forward_float8(Step& step, const Tensor& x_TI, const ops::Float8Scale& scale,
                      const Tensor& y_TO, bool bias) const;
  void dgrad_float8(Stream& stream, const ops::Float8Tensor& dy_TO, const Tensor& dx_TI) const;
  void wgrad_now(Stream& stream, const Tensor& x_TI, const InputScale& scale,
                 const OutputGradient& dy) const;
  const char* name(Pass pass) const;

  const LayerGemm gemm_;
  Parameter *weight_, *bias_ = nullptr;
  std::shared_ptr<Float8Scaling> fp8_;
  int64_t number_ = 0;  // this linear's number in fp8_
};

// The linear of a rank that has the whole weight.
std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec);

}  // namespace mtrain::model
