#include "kernels/activation.h"

#include "base/math.h"
#include "ops/enqueue.h"
#include "ops/ops.h"

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

Tensor swiglu(Stream& stream, const Tensor& gate_up_T2F, const Float8Write& write,
              GateFunction gate) {
  MT_FLOAT("swiglu", gate_up_T2F);
  const int64_t T = gate_up_T2F.dim(0), F = exact_div(gate_up_T2F.dim(1), 2);
  Tensor y = Tensor::empty(stream, {T, F}, write.in_8_bits() ? write.type : gate_up_T2F.dtype());
  enqueue(stream,
          {.name = name_of(gate, "swiglu_fwd", "geglu_fwd"),
           .reads = {gate_up_T2F, write.scale.scale, write.amax},
           .writes = {y, write.amax}},
          kernels::SwigluForward{.gate_up_T2F = gate_up_T2F,
                                 .y_TF = y,
                                 .T = T,
                                 .F = F,
                                 .amax = write.amax,
                                 .scale = write.scale.scale,
                                 .gate = gate});
  return y;
}

Tensor swiglu_backward(Stream& stream, const Tensor& gate_up_T2F, const Tensor& dy_TF,
                       const Tensor& y_TF, const Float8Write& write, const Float8Scale& y_scale,
                       GateFunction gate) {
  const int64_t T = gate_up_T2F.dim(0), F = exact_div(gate_up_T2F.dim(1), 2);
  MT_SHAPE("swiglu_backward", dy_TF, {T, F});
  MT_FLOAT("swiglu_backward", gate_up_T2F);
  MT_DTYPE("swiglu_backward", dy_TF, gate_up_T2F.dtype());
  const bool y_in_8_bits = y_TF && is_float8(y_TF.dtype());
  if (y_TF) MT_SHAPE("swiglu_backward", y_TF, {T, F});
  if (y_TF && !y_in_8_bits) MT_DTYPE("swiglu_backward", y_TF, gate_up_T2F.dtype());
  const Tensor y_scale_1 = y_in_8_bits ? y_scale.scale : Tensor();
  MT_CHECK(!y_in_8_bits || y_scale_1, "swiglu_backward: y_TF in 8 bits has no scale");
  Tensor d = Tensor::empty(stream, gate_up_T2F.shape(),
                           write.in_8_bits() ? write.type : gate_up_T2F.dtype());
  enqueue(stream,
          {.name = name_of(gate, "swiglu_bwd", "geglu_bwd"),
           .reads = {gate_up_T2F, dy_TF, write.scale.scale, y_scale_1, write.amax},
           .writes = {d, y_TF, write.amax}},
          kernels::SwigluBackward{.gate_up_T2F = gate_up_T2F,
                                  .dy_TF = dy_TF,
                                  .dgate_up_T2F = d,
                                  .y_TF = y_TF,
                                  .T = T,
                                  .F = F,
                                  .amax = write.amax,
                                  .scale = write.scale.scale,
                                  .y_scale = y_scale_1,
                                  .gate = gate});
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
