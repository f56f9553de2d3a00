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

// A head's first N elements of q, as one row, times the rows of the keys' weight. Sums of a few
// vectors of columns stay in registers.
template <class T>
MT_INLINE void absorb(const T* q, const T* weight, T* out, int64_t N, int64_t C) {
  constexpr int kVectors = 4;
  int64_t c = 0;
  for (; c + kVectors * kLanes <= C; c += kVectors * kLanes) {
    Vf sum[kVectors]{};
    for (int64_t n = 0; n < N; ++n)
      for (int i = 0; i < kVectors; ++i)
        sum[i] += splat(to_float(q[n])) * load(weight + n * C + c + i * kLanes);
    for (int i = 0; i < kVectors; ++i) store(out + c + i * kLanes, sum[i]);
  }
  for_lanes(C - c, [&](int64_t e, auto m) {
    Vf sum{};
    for (int64_t n = 0; n < N; ++n) sum += splat(to_float(q[n])) * load(weight + n * C + c + e, m);
    store(out + c + e, sum, m);
  });
}

// A head's weighted sum of latents times the rows of the values' weight.
template <class T>
MT_INLINE void expand_values(const T* x, const T* weight, T* out, int64_t V, int64_t C) {
  for (int64_t v = 0; v < V; ++v) {
    Vf sum{};
    for_lanes(C, [&](int64_t c, auto m) { sum += load(x + c, m) * load(weight + v * C + c, m); });
    float total = sum[0];
    for (int i = 1; i < kLanes; ++i) total += sum[i];
    out[v] = from_float<T>(total);
  }
}

}  // namespace

void run(const LatentQueries& a);
void run(const LatentQueries& a) {
  with_float(a.q_TN.dtype, [&]<class T>() {
    parallel(a.A, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h)
        for (int64_t t = 0; t < a.T; ++t) {
          const T* q = data_of<T>(a.q_TN) + (t * a.A + h) * (a.N + a.R);
          T* out = data_of<T>(a.out_TN) + (t * a.A + h) * (a.C + a.R);
          absorb(q, data_of<T>(a.weight_NC) + h * (a.N + a.V) * a.C, out, a.N, a.C);
          copy(q + a.N, a.R, out + a.C);
        }
    });
  });
}

void run(const LatentValues& a);
void run(const LatentValues& a) {
  with_float(a.x_TN.dtype, [&]<class T>() {
    parallel(a.A, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h)
        for (int64_t t = 0; t < a.T; ++t)
          expand_values(data_of<T>(a.x_TN) + (t * a.A + h) * a.C,
                        data_of<T>(a.weight_NC) + (h * (a.N + a.V) + a.N) * a.C,
                        data_of<T>(a.out_TN) + (t * a.A + h) * a.V, a.V, a.C);
    });
  });
}

void run(const LatentHeadsForward& a);
void run(const LatentHeadsForward& a) {
  const int64_t D = a.N + a.R, of_q = a.q_TN ? a.A * D : 0, of_kv = a.A * (a.N + a.V);
  with_float(a.qkv_TN.dtype, [&]<class T>() {
    for_tokens(a, [&](int64_t t) {
      const T* kv = data_of<T>(a.kv_TN) + t * of_kv;
      const T* shared = data_of<T>(a.shared_TR) + t * a.R;
      T* q = data_of<T>(a.qkv_TN) + t * (of_q + a.A * (D + a.V));
      T *keys = q + of_q, *values = keys + a.A * D;
      if (of_q > 0) copy(data_of<T>(a.q_TN) + t * of_q, of_q, q);
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
