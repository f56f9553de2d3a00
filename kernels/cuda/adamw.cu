#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

struct Update {
  float beta1, beta2, eps, step_size, v_correction, keep;
};

template <int N>
__global__ void adamw(float* master, float* m, float* v, const float* grad, bf16* param,
                      const float* grad_scale, Update u, int64_t count) {
  const float scale = grad_scale ? *grad_scale : 1.0f;
  if (!isfinite(scale)) return;
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float g[L], m1[L], v1[L], w[L];
    load<L>(grad + i, g);
    load<L>(m + i, m1);
    load<L>(v + i, v1);
    load<L>(master + i, w);
#pragma unroll
    for (int j = 0; j < L; ++j) {
      g[j] *= scale;
      m1[j] = u.beta1 * m1[j] + (1.0f - u.beta1) * g[j];
      v1[j] = u.beta2 * v1[j] + (1.0f - u.beta2) * (g[j] * g[j]);
      w[j] = u.keep * w[j] - u.step_size * m1[j] / (sqrtf(v1[j] * u.v_correction) + u.eps);
    }
    store<L>(m + i, m1);
    store<L>(v + i, v1);
    store<L>(master + i, w);
    if (param) store<L>(param + i, w);
  });
}

}  // namespace

void run(const AdamW& a, CUstream_st* stream) {
  const int64_t n = a.master.count;
  if (n <= 0) return;
  const Update u{.beta1 = a.beta1,
                 .beta2 = a.beta2,
                 .eps = a.eps,
                 .step_size = float(a.lr / (1.0 - std::pow(double(a.beta1), double(a.step)))),
                 .v_correction = float(1.0 / (1.0 - std::pow(double(a.beta2), double(a.step)))),
                 .keep = 1.0f - a.lr * a.weight_decay};
  with_width<float>(
      aligned({a.master.data, a.m.data, a.v.data, a.grad.data, a.param.data}), [&]<int N>() {
        MT_LAUNCH((adamw<N>), flat_blocks(n, N), kFlatThreads, 0, stream, data<float>(a.master),
                  data<float>(a.m), data<float>(a.v), data<float>(a.grad), data<bf16>(a.param),
                  data<float>(a.grad_scale), u, n);
      });
}

}  // namespace mtrain::kernels::cuda
