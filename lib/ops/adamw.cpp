#include "ops/adamw.h"

#include "kernels/adamw.h"
#include "ops/enqueue.h"

MT_KERNEL(AdamW)

namespace mtrain::ops {

namespace {
kernels::AdamW arguments_of(const AdamWHyper& h) {
  return {.lr = h.lr,
          .beta1 = h.beta1,
          .beta2 = h.beta2,
          .eps = h.eps,
          .weight_decay = h.weight_decay,
          .decoupled_decay = h.decoupled_decay,
          .step = h.step,
          .rounding = h.rounding,
          .factors_in_memory = h.factors_3,
          .keys_in_memory = h.keys_2};
}
}  // namespace

std::array<float, 3> adamw_factors(const AdamWHyper& hyper) {
  const kernels::AdamWFactors f = factors_of(arguments_of(hyper));
  return {f.step_size, f.v_correction, f.keep};
}

void adamw(Stream& stream, const AdamWHyper& h, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& grad, const Tensor& grad_scale, const Tensor& param) {
  const Tensor& weights = master ? master : param;
  for (const Tensor* t : {&m, &v, &grad})
    MT_CHECK(t->count() == weights.count(), "adamw: {} of {} parameters", t->count(),
             weights.count());
  kernels::AdamW a = arguments_of(h);
  a.master = master, a.m = m, a.v = v, a.param = param;
  a.grad = grad, a.grad_scale = grad_scale;
  enqueue(stream, "adamw", a);
}

}  // namespace mtrain::ops
