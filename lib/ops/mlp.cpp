#include "kernels/activation.h"

#include "base/math.h"
#include "ops/enqueue.h"
#include "ops/ops.h"

MT_KERNEL(SwigluForward)
MT_KERNEL(SwigluBackward)
MT_KERNEL(GeluForward)
MT_KERNEL(GeluBackward)

namespace mtrain::ops {

Tensor swiglu(Stream& stream, const Tensor& gate_up_T2F, const Tensor& amax) {
  MT_FLOAT("swiglu", gate_up_T2F);
  const int64_t T = gate_up_T2F.dim(0), F = exact_div(gate_up_T2F.dim(1), 2);
  Tensor y = Tensor::empty(stream, {T, F}, gate_up_T2F.dtype());
  enqueue(
      stream, {.name = "swiglu_fwd", .reads = {gate_up_T2F, amax}, .writes = {y, amax}},
      kernels::SwigluForward{.gate_up_T2F = gate_up_T2F, .y_TF = y, .T = T, .F = F, .amax = amax});
  return y;
}

Tensor swiglu_backward(Stream& stream, const Tensor& gate_up_T2F, const Tensor& dy_TF,
                       const Tensor& y_TF, const Tensor& amax) {
  const int64_t T = gate_up_T2F.dim(0), F = exact_div(gate_up_T2F.dim(1), 2);
  MT_SHAPE("swiglu_backward", dy_TF, {T, F});
  MT_FLOAT("swiglu_backward", gate_up_T2F);
  MT_DTYPE("swiglu_backward", dy_TF, gate_up_T2F.dtype());
  if (y_TF) {
    MT_SHAPE("swiglu_backward", y_TF, {T, F});
    MT_DTYPE("swiglu_backward", y_TF, gate_up_T2F.dtype());
  }
  Tensor d = Tensor::empty(stream, gate_up_T2F.shape(), gate_up_T2F.dtype());
  enqueue(stream,
          {.name = "swiglu_bwd", .reads = {gate_up_T2F, dy_TF, amax}, .writes = {d, y_TF, amax}},
          kernels::SwigluBackward{.gate_up_T2F = gate_up_T2F,
                                  .dy_TF = dy_TF,
                                  .dgate_up_T2F = d,
                                  .y_TF = y_TF,
                                  .T = T,
                                  .F = F,
                                  .amax = amax});
  return d;
}

Tensor gelu(Stream& stream, const Tensor& x, bool tanh, const Tensor& amax) {
  MT_FLOAT("gelu", x);
  Tensor y = Tensor::empty(stream, x.shape(), x.dtype());
  enqueue(stream, {.name = "gelu_fwd", .reads = {x, amax}, .writes = {y, amax}},
          kernels::GeluForward{.x = x, .y = y, .count = x.count(), .tanh = tanh, .amax = amax});
  return y;
}

Tensor gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& y, bool tanh,
                     const Tensor& amax) {
  MT_CHECK(dy.shape() == x.shape(), "gelu_backward: dy is {}, x {}", dy.shape().str(),
           x.shape().str());
  MT_FLOAT("gelu_backward", x);
  MT_DTYPE("gelu_backward", dy, x.dtype());
  if (y) {
    MT_CHECK(y.shape() == x.shape(), "gelu_backward: y is {}, x {}", y.shape().str(),
             x.shape().str());
    MT_DTYPE("gelu_backward", y, x.dtype());
  }
  Tensor dx = Tensor::empty(stream, x.shape(), x.dtype());
  enqueue(stream, {.name = "gelu_bwd", .reads = {x, dy, amax}, .writes = {dx, y, amax}},
          kernels::GeluBackward{
              .x = x, .dy = dy, .dx = dx, .y = y, .count = x.count(), .tanh = tanh, .amax = amax});
  return dx;
}

}  // namespace mtrain::ops
