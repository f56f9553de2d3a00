#include "ops/activation.h"

#include "base/math.h"
#include "kernels/activation.h"
#include "ops/enqueue.h"

MT_KERNEL(SwigluForward)
MT_KERNEL(SwigluBackward)
MT_KERNEL(GeluForward)
MT_KERNEL(GeluBackward)

namespace mtrain::ops {

namespace {
const char* name_of(GateFunction gate, const char* swiglu, const char* geglu) {
  return gate == GateFunction::silu ? swiglu : geglu;
}
}  // namespace

Written swiglu(Stream& stream, const Tensor& gate_up_T2F, const Destination& to,
               GateFunction gate) {
  MT_FLOAT("swiglu", gate_up_T2F);
  const int64_t T = gate_up_T2F.dim(0), F = exact_div(gate_up_T2F.dim(1), 2);
  const Written y = result_alone(stream, {T, F}, gate_up_T2F.dtype(), to);
  enqueue(stream, name_of(gate, "swiglu_fwd", "geglu_fwd"),
          kernels::SwigluForward{.gate_up_T2F = gate_up_T2F,
                                 .y_TF = y.data(),
                                 .T = T,
                                 .F = F,
                                 .amax = to.amax,
                                 .scale = to.scale.scale,
                                 .gate = gate});
  return y;
}

ActivationGradient swiglu_backward(Stream& stream, const Tensor& gate_up_T2F, const Tensor& dy_TF,
                                   const Destination& asked, const Destination* recomputed,
                                   GateFunction gate) {
  const int64_t T = gate_up_T2F.dim(0), F = exact_div(gate_up_T2F.dim(1), 2);
  MT_SHAPE("swiglu_backward", dy_TF, {T, F});
  MT_FLOAT("swiglu_backward", gate_up_T2F);
  MT_DTYPE("swiglu_backward", dy_TF, gate_up_T2F.dtype());
  // The kernel writes one form, plain or quantized.
  const Destination to = asked.quantizes() && asked.needs_plain ? Destination{} : asked;
  ActivationGradient d;
  Scale y_scale;
  if (recomputed && recomputed->quantizes()) {
    d.y = result_alone(stream, {T, F}, dy_TF.dtype(), *recomputed);
    d.y.amax = {};  // the kernel does not find it
    y_scale = recomputed->scale;
  } else if (recomputed) {
    d.y = dy_TF;
  }
  d.dx = result_alone(stream, gate_up_T2F.shape(), gate_up_T2F.dtype(), to);
  enqueue(stream, name_of(gate, "swiglu_bwd", "geglu_bwd"),
          kernels::SwigluBackward{.gate_up_T2F = gate_up_T2F,
                                  .dy_TF = dy_TF,
                                  .dgate_up_T2F = d.dx.data(),
                                  .y_TF = d.y.data(),
                                  .T = T,
                                  .F = F,
                                  .amax = to.amax,
                                  .scale = to.scale.scale,
                                  .y_scale = y_scale.scale,
                                  .gate = gate});
  return d;
}

Written gelu(Stream& stream, const Tensor& x, bool tanh, const Destination& to) {
  MT_FLOAT("gelu", x);
  Written y = Tensor::empty(stream, x.shape(), x.dtype());
  if (!to.quantizes()) y.amax = to.amax;
  enqueue(
      stream, "gelu_fwd",
      kernels::GeluForward{.x = x, .y = y.plain, .count = x.count(), .tanh = tanh, .amax = y.amax});
  return y;
}

Written gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& y, bool tanh,
                      const Destination& to) {
  MT_CHECK(dy.shape() == x.shape(), "gelu_backward: dy is {}, x {}", dy.shape().str(),
           x.shape().str());
  MT_FLOAT("gelu_backward", x);
  MT_DTYPE("gelu_backward", dy, x.dtype());
  if (y) {
    MT_CHECK(y.shape() == x.shape(), "gelu_backward: y is {}, x {}", y.shape().str(),
             x.shape().str());
    MT_DTYPE("gelu_backward", y, x.dtype());
  }
  Written dx = Tensor::empty(stream, x.shape(), x.dtype());
  if (!to.quantizes()) dx.amax = to.amax;
  enqueue(stream, "gelu_bwd",
          kernels::GeluBackward{.x = x,
                                .dy = dy,
                                .dx = dx.plain,
                                .y = y,
                                .count = x.count(),
                                .tanh = tanh,
                                .amax = dx.amax});
  return dx;
}

}  // namespace mtrain::ops
