#include "kernels/latent_heads.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

template <class T>
MT_INLINE void copy(const T* from, int64_t n, T* to) {
  __builtin_memcpy(to, from, size_t(n) * sizeof(T));
}

// Calls f(t) for each token, in parallel.
template <class Args, class F>
MT_INLINE void for_tokens(const Args& a, const F& f) {
  const int64_t width = a.A * (2 * (a.N + a.R) + a.V);
  parallel(a.T, max_of(1, 16384 / width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) f(t);
  });
}

}  // namespace

void run(const LatentHeadsForward& a);
void run(const LatentHeadsForward& a) {
  const int64_t D = a.N + a.R, of_q = a.A * D, of_kv = a.A * (a.N + a.V);
  with_float(a.qkv_TN.dtype, [&]<class T>() {
    for_tokens(a, [&](int64_t t) {
      const T* kv = data_of<T>(a.kv_TN) + t * of_kv;
      const T* shared = data_of<T>(a.shared_TR) + t * a.R;
      T* q = data_of<T>(a.qkv_TN) + t * (2 * of_q + a.A * a.V);
      T *keys = q + of_q, *values = keys + of_q;
      copy(data_of<T>(a.q_TN) + t * of_q, of_q, q);
      for (int64_t h = 0; h < a.A; ++h, kv += a.N + a.V) {
        copy(kv, a.N, keys + h * D);
        copy(shared, a.R, keys + h * D + a.N);
        copy(kv + a.N, a.V, values + h * a.V);
      }
    });
  });
}

void run(const LatentHeadsBackward& a);
void run(const LatentHeadsBackward& a) {
  const int64_t D = a.N + a.R, of_q = a.A * D, of_kv = a.A * (a.N + a.V);
  with_float(a.dqkv_TN.dtype, [&]<class T>() {
    for_tokens(a, [&](int64_t t) {
      const T* dq = data_of<T>(a.dqkv_TN) + t * (2 * of_q + a.A * a.V);
      const T *dkeys = dq + of_q, *dvalues = dkeys + of_q;
      T* dkv = data_of<T>(a.dkv_TN) + t * of_kv;
      T* dshared = data_of<T>(a.dshared_TR) + t * a.R;
      copy(dq, of_q, data_of<T>(a.dq_TN) + t * of_q);
      for (int64_t h = 0; h < a.A; ++h, dkv += a.N + a.V) {
        copy(dkeys + h * D, a.N, dkv);
        copy(dvalues + h * a.V, a.V, dkv + a.N);
      }
      for_lanes(a.R, [&](int64_t i, auto m) {
        Vf sum{};
        for (int64_t h = 0; h < a.A; ++h) sum += load(dkeys + h * D + a.N + i, m);
        store(dshared + i, sum, m);
      });
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
