#include "kernels/muon.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per chunk

float scale_of(const ConstSpan& grad_scale) {
  return grad_scale.data ? *data_of<float>(grad_scale) : 1.0f;
}

template <class P>
void update(const MuonUpdate& a) {
  float* master = data_of<float>(a.master);
  const float* direction = data_of<float>(a.direction);
  P* param = data_of<P>(a.param);
  const float* factors = data_of<float>(a.factors_in_memory);
  const float lr = factors ? factors[0] : a.lr, keep = factors ? factors[1] : keep_of(a);
  parallel(a.master.count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t j, auto lanes) {
      const int64_t i = begin + j;
      const Vf w = keep * load(master + i, lanes) - lr * load(direction + i, lanes);
      store(master + i, w, lanes);
      if (param) store(param + i, w, lanes);
    });
  });
}

}  // namespace

void run(const MuonDirection& a) {
  float *momentum = data_of<float>(a.momentum), *grad = data_of<float>(a.grad);
  const float scale = scale_of(a.grad_scale), beta = a.beta;
  if (!__builtin_isfinite(scale))
    return parallel(a.grad.count, kGrain, [=](int64_t begin, int64_t end) {
      __builtin_memset(grad + begin, 0, size_t(end - begin) * sizeof(float));
    });
  const bool nesterov = a.nesterov;
  parallel(a.grad.count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t j, auto lanes) {
      const int64_t i = begin + j;
      const Vf g = load(grad + i, lanes) * scale, old = load(momentum + i, lanes),
               m = old + (1.0f - beta) * (g - old);
      store(momentum + i, m, lanes);
      store(grad + i, nesterov ? g + beta * (m - g) : m, lanes);
    });
  });
}

void run(const MuonNormalize& a) {
  float* x = data_of<float>(a.x);
  const double norm = __builtin_sqrt(*data_of<double>(a.sum_squares));
  const float factor = float(1.0 / (norm > double(a.eps) ? norm : double(a.eps)));
  parallel(a.x.count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t j, auto lanes) {
      store(x + begin + j, load(x + begin + j, lanes) * factor, lanes);
    });
  });
}

void run(const MuonUpdate& a) {
  if (!__builtin_isfinite(scale_of(a.grad_scale))) return;
  a.param.dtype == DType::f16 ? update<f16>(a) : update<bf16>(a);
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
