#include "kernels/muon.h"

#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

template <int N>
__global__ void muon_direction(float* momentum, float* grad, const float* grad_scale, float beta,
                               bool nesterov, int64_t count) {
  const float scale = grad_scale ? *grad_scale : 1.0f;
  const bool finite = isfinite(scale);
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float g[L], m[L];
    load<L>(grad + i, g);
    load<L>(momentum + i, m);
#pragma unroll
    for (int j = 0; j < L; ++j) {
      g[j] *= scale;
      const float next = m[j] + (1.0f - beta) * (g[j] - m[j]);
      if (finite) m[j] = next;
      g[j] = !finite ? 0.0f : nesterov ? g[j] + beta * (next - g[j]) : next;
    }
    store<L>(momentum + i, m);
    store<L>(grad + i, g);
  });
}

template <int N>
__global__ void muon_normalize(float* x, const double* sum_squares, float eps, int64_t count) {
  const float factor = float(1.0 / fmax(sqrt(*sum_squares), double(eps)));
  change_elements<N>(x, count, [=](float v) { return v * factor; });
}

template <int N, class P>
__global__ void muon_update(float* master, const float* direction, P* param,
                            const float* grad_scale, float lr, float keep, const float* factors,
                            int64_t count) {
  if (grad_scale && !isfinite(*grad_scale)) return;
  if (factors) lr = factors[0], keep = factors[1];
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float w[L], d[L];
    load<L>(master + i, w);
    load<L>(direction + i, d);
#pragma unroll
    for (int j = 0; j < L; ++j) w[j] = keep * w[j] - lr * d[j];
    store<L>(master + i, w);
    if (param) store<L>(param + i, w);
  });
}

}  // namespace

void run(const MuonDirection& a, CUstream_st* stream) {
  const int64_t n = a.grad.count;
  if (n <= 0) return;
  with_width<float>(aligned({a.momentum.data, a.grad.data}), [&]<int N>() {
    MT_LAUNCH((muon_direction<N>), flat_blocks(n, N), kFlatThreads, 0, stream,
              data<float>(a.momentum), data<float>(a.grad), data<float>(a.grad_scale), a.beta,
              a.nesterov, n);
  });
}

void run(const MuonNormalize& a, CUstream_st* stream) {
  const int64_t n = a.x.count;
  if (n <= 0) return;
  with_width<float>(aligned({a.x.data}), [&]<int N>() {
    MT_LAUNCH((muon_normalize<N>), flat_blocks(n, N), kFlatThreads, 0, stream, data<float>(a.x),
              data<double>(a.sum_squares), a.eps, n);
  });
}

void run(const MuonUpdate& a, CUstream_st* stream) {
  const int64_t n = a.master.count;
  if (n <= 0) return;
  const float keep = keep_of(a);
  with_width<float>(aligned({a.master.data, a.direction.data, a.param.data}), [&]<int N>() {
    const auto launch = [&]<class P>() {
      MT_LAUNCH((muon_update<N, P>), flat_blocks(n, N), kFlatThreads, 0, stream,
                data<float>(a.master), data<float>(a.direction), data<P>(a.param),
                data<float>(a.grad_scale), a.lr, keep, data<float>(a.factors_in_memory), n);
    };
    if (a.param.dtype == DType::f16)
      launch.template operator()<f16>();
    else
      launch.template operator()<bf16>();
  });
}

}  // namespace mtrain::kernels::cuda
