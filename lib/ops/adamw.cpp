#include "ops/adamw.h"

#include "kernels/adamw.h"
#include "ops/enqueue.h"

MT_KERNEL(AdamW)

namespace mtrain::ops {

void adamw(Stream& stream, const AdamWHyper& h, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& grad, const Tensor& grad_scale, const Tensor& param) {
  const Tensor& weights = master ? master : param;
  for (const Tensor* t : {&m, &v, &grad})
    MT_CHECK(t->count() == weights.count(), "adamw: {} of {} parameters", t->count(),
             weights.count());
  enqueue(stream, "adamw",
          kernels::AdamW{.master = master,
                         .m = m,
                         .v = v,
                         .grad = grad,
                         .param = param,
                         .grad_scale = grad_scale,
                         .lr = h.lr,
                         .beta1 = h.beta1,
                         .beta2 = h.beta2,
                         .eps = h.eps,
                         .weight_decay = h.weight_decay,
                         .decoupled_decay = h.decoupled_decay,
                         .step = h.step,
                         .rounding = h.rounding});
}

}  // namespace mtrain::ops
