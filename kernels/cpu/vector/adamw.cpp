#include "kernels/adamw.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// With mhat = m / (1 - beta1^t) and vhat = v / (1 - beta2^t): master -= lr * (mhat / (sqrt(vhat) +
// eps) + weight_decay * master).
void run(const AdamW& a) {
  const float beta1 = a.beta1, beta2 = a.beta2, eps = a.eps;
  const float step_size = float(a.lr / (1.0 - __builtin_pow(double(beta1), double(a.step))));
  const float v_correction = float(1.0 / (1.0 - __builtin_pow(double(beta2), double(a.step))));
  const float keep = 1.0f - a.lr * a.weight_decay;
  const float scale = a.grad_scale.data ? *data_of<float>(a.grad_scale) : 1.0f;
  if (!__builtin_isfinite(scale)) return;
  const float* grad = data_of<float>(a.grad);
  float *master = data_of<float>(a.master), *m = data_of<float>(a.m), *v = data_of<float>(a.v);
  bf16* param = data_of<bf16>(a.param);
  parallel(a.master.count, 16384, [=](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t j, auto lanes) {
      const int64_t i = begin + j;
      const Vf g = load(grad + i, lanes) * scale;
      const Vf m1 = beta1 * load(m + i, lanes) + (1.0f - beta1) * g;
      const Vf v1 = beta2 * load(v + i, lanes) + (1.0f - beta2) * (g * g);
      const Vf w =
          keep * load(master + i, lanes) - step_size * m1 / (vsqrt(v1 * v_correction) + eps);
      store(m + i, m1, lanes);
      store(v + i, v1, lanes);
      store(master + i, w, lanes);
      if (param) store(param + i, w, lanes);
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
