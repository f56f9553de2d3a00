#include "ops/muon.h"

#include "kernels/muon.h"
#include "ops/enqueue.h"

MT_KERNEL(MuonDirection)
MT_KERNEL(MuonNormalize)
MT_KERNEL(MuonUpdate)

namespace mtrain::ops {

void muon_direction(Stream& stream, const Tensor& momentum, const Tensor& grad,
                    const Tensor& grad_scale, float beta, bool nesterov) {
  MT_CHECK(momentum.count() == grad.count(), "muon_direction: {} of {} elements", momentum.count(),
           grad.count());
  enqueue(stream, "muon_direction",
          kernels::MuonDirection{.momentum = momentum,
                                 .grad = grad,
                                 .grad_scale = grad_scale,
                                 .beta = beta,
                                 .nesterov = nesterov});
}

void muon_normalize(Stream& stream, const Tensor& x, const Tensor& sum_squares, float eps) {
  enqueue(stream, "muon_normalize",
          kernels::MuonNormalize{.x = x, .sum_squares = sum_squares, .eps = eps});
}

std::array<float, 2> muon_factors(float lr, float weight_decay) {
  return {lr, keep_of(kernels::MuonUpdate{.lr = lr, .weight_decay = weight_decay})};
}

void muon_update(Stream& stream, const Tensor& master, const Tensor& direction,
                 const Tensor& grad_scale, const Tensor& param, float lr, float weight_decay,
                 const Tensor& factors_2) {
  MT_CHECK(master.count() == direction.count() && (!param || param.count() == master.count()),
           "muon_update: {} of {} elements", direction.count(), master.count());
  enqueue(stream, "muon_update",
          kernels::MuonUpdate{.master = master,
                              .direction = direction,
                              .param = param,
                              .grad_scale = grad_scale,
                              .lr = lr,
                              .weight_decay = weight_decay,
                              .factors_in_memory = factors_2});
}

}  // namespace mtrain::ops
