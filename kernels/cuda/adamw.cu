#include "kernels/adamw.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/philox.h"

namespace mtrain::kernels::cuda {
namespace {

struct Update {
  float beta1, beta2, eps, step_size, v_correction;
  float keep, l2;  // the weight's factor: outside of the gradient, and in the gradient
};

// What an update reads when it runs, so that a graph can replay it. Null: the arguments count.
struct InMemory {
  const float* factors;
  const int64_t* keys;

  __device__ __forceinline__ void read(Update& u, AdamWRounding& rounding) const {
    if (factors) u.step_size = factors[0], u.v_correction = factors[1], u.keep = factors[2];
    if (keys) rounding.key = uint64_t(keys[0]), rounding.moments_key = uint64_t(keys[1]);
  }
};

__device__ __forceinline__ uint16_t round_at_random(float w, uint32_t random) {
  const uint32_t bits = __float_as_uint(w);
  if ((bits & 0x7f800000u) == 0x7f800000u) return uint16_t(pack_bf16(w, 0.0f));  // infinity or NaN
  return uint16_t((bits + random) >> 16);
}

// Returns half-word n % 8 of a block; registers cannot be indexed.
__device__ __forceinline__ uint32_t half_of(const Words& w, int64_t n) {
  const uint32_t low = n & 2 ? w.x[1] : w.x[0], high = n & 2 ? w.x[3] : w.x[2];
  const uint32_t word = n & 4 ? high : low;
  return n & 1 ? word >> 16 : word & 0xffffu;
}

// Returns the indices in the full tensor of the buffer's elements [i, i + L); see AdamWRounding.
template <int L>
__device__ __forceinline__ void numbers_of(const AdamWRounding& r, int64_t i, int64_t (&n)[L]) {
  int64_t at = r.at + i, row = 0;
  if (r.columns > 0) {
    row = at / r.columns;
    at -= row * r.columns;
  }
#pragma unroll
  for (int j = 0; j < L; ++j, ++at) {
    if (r.columns > 0 && at >= r.columns) at -= r.columns, ++row;
    n[j] = r.first + row * r.stride + at;
  }
}

// Writes moments; those in bf16 with stochastic rounding.
template <int L>
__device__ __forceinline__ void store_moments(const AdamWRounding&, float* m, float* v, int64_t i,
                                              const float (&m1)[L], const float (&v1)[L]) {
  store<L>(m + i, m1);
  store<L>(v + i, v1);
}
template <int L>
__device__ __forceinline__ void store_moments(const AdamWRounding& rounding, bf16* m, bf16* v,
                                              int64_t i, float (&m1)[L], float (&v1)[L]) {
  int64_t n[L];
  numbers_of<L>(rounding, i, n);
  int64_t block = n[0] / 4;
  Words words = philox(rounding.moments_key, uint64_t(block));
#pragma unroll
  for (int j = 0; j < L; ++j) {
    if (n[j] / 4 != block) {
      block = n[j] / 4;
      words = philox(rounding.moments_key, uint64_t(block));
    }
    const uint32_t low = n[j] & 1 ? words.x[1] : words.x[0],
                   high = n[j] & 1 ? words.x[3] : words.x[2], word = n[j] & 2 ? high : low;
    // store() does not round this further.
    m1[j] = __uint_as_float(uint32_t(round_at_random(m1[j], word & 0xffffu)) << 16);
    v1[j] = __uint_as_float(uint32_t(round_at_random(v1[j], word >> 16)) << 16);
  }
  store<L>(m + i, m1);
  store<L>(v + i, v1);
}

// Returns the weights of the elements [i, i + L) after the update, and writes their moments.
template <int L, class M>
__device__ __forceinline__ void update(const Update& u, const AdamWRounding& rounding, float scale,
                                       M* m, M* v, const float* grad, int64_t i, float (&w)[L]) {
  float g[L], m1[L], v1[L];
  load<L>(grad + i, g);
  load<L>(m + i, m1);
  load<L>(v + i, v1);
#pragma unroll
  for (int j = 0; j < L; ++j) {
    g[j] *= scale;
    if (u.l2 != 0.0f) g[j] += u.l2 * w[j];
    m1[j] = u.beta1 * m1[j] + (1.0f - u.beta1) * g[j];
    v1[j] = u.beta2 * v1[j] + (1.0f - u.beta2) * (g[j] * g[j]);
    w[j] = u.keep * w[j] - u.step_size * m1[j] / (sqrtf(v1[j] * u.v_correction) + u.eps);
  }
  store_moments<L>(rounding, m, v, i, m1, v1);
}

// Also writes the copy of the master weights for compute, of type P, if there is one.
template <int N, class P, class M>
__global__ void adamw(float* master, M* m, M* v, const float* grad, P* param,
                      const float* grad_scale, Update u, AdamWRounding rounding, InMemory in_memory,
                      int64_t count) {
  const float scale = grad_scale ? *grad_scale : 1.0f;
  if (!isfinite(scale)) return;
  in_memory.read(u, rounding);
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float w[L];
    load<L>(master + i, w);
    update<L>(u, rounding, scale, m, v, grad, i, w);
    store<L>(master + i, w);
    if (param) store<L>(param + i, w);
  });
}

// The update of bf16 parameters without master weights.
template <int N, class M>
__global__ void adamw_bf16(bf16* param, M* m, M* v, const float* grad, const float* grad_scale,
                           Update u, AdamWRounding rounding, InMemory in_memory, int64_t count) {
  const float scale = grad_scale ? *grad_scale : 1.0f;
  if (!isfinite(scale)) return;
  in_memory.read(u, rounding);
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float w[L];
    load<L>(param + i, w);
    update<L>(u, rounding, scale, m, v, grad, i, w);
    if (rounding.random) {
      int64_t n[L];
      numbers_of<L>(rounding, i, n);
      int64_t block = n[0] / 8;
      Words words = philox(rounding.key, uint64_t(block));
#pragma unroll
      for (int j = 0; j < L; ++j) {
        if (n[j] / 8 != block) {
          block = n[j] / 8;
          words = philox(rounding.key, uint64_t(block));
        }
        // store() does not round this further.
        w[j] = __uint_as_float(uint32_t(round_at_random(w[j], half_of(words, n[j]))) << 16);
      }
    }
    store<L>(param + i, w);
  });
}

}  // namespace

void run(const AdamW& a, CUstream_st* stream) {
  const int64_t n = a.count();
  if (n <= 0) return;
  const AdamWFactors f = factors_of(a);
  const InMemory in_memory{data<float>(a.factors_in_memory), data<int64_t>(a.keys_in_memory)};
  const Update u{.beta1 = a.beta1,
                 .beta2 = a.beta2,
                 .eps = a.eps,
                 .step_size = f.step_size,
                 .v_correction = f.v_correction,
                 .keep = f.keep,
                 .l2 = a.decoupled_decay ? 0.0f : a.weight_decay};
  with_width<float>(
      aligned({a.master.data, a.m.data, a.v.data, a.grad.data, a.param.data}), [&]<int N>() {
        const auto launch = [&]<class M>() {
          const auto with_master = [&]<class P>() {
            MT_LAUNCH((adamw<N, P, M>), flat_blocks(n, N), kFlatThreads, 0, stream,
                      data<float>(a.master), data<M>(a.m), data<M>(a.v), data<float>(a.grad),
                      data<P>(a.param), data<float>(a.grad_scale), u, a.rounding, in_memory, n);
          };
          if (a.master && a.param.dtype == DType::f16)
            with_master.template operator()<f16>();
          else if (a.master)
            with_master.template operator()<bf16>();
          else
            MT_LAUNCH((adamw_bf16<N, M>), flat_blocks(n, N), kFlatThreads, 0, stream,
                      data<bf16>(a.param), data<M>(a.m), data<M>(a.v), data<float>(a.grad),
                      data<float>(a.grad_scale), u, a.rounding, in_memory, n);
        };
        if (a.m.dtype == DType::bf16)
          launch.template operator()<bf16>();
        else
          launch.template operator()<float>();
      });
}

}  // namespace mtrain::kernels::cuda
