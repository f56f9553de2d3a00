#include "kernels/adamw.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

// The Philox of base/rng.h by words and half-words. It is repeated here since vector files may not
// use inline functions of base/rng.h.
struct Random {
  __attribute__((always_inline)) uint32_t half(uint64_t key, int64_t n) {
    return word(key, n / 2) >> (n % 2 * 16) & 0xffff;
  }
  __attribute__((always_inline)) uint32_t word(uint64_t key, int64_t n) {
    if (n / 4 != block) {
      block = n / 4;
      fill(key);
    }
    return x[n % 4];
  }
  __attribute__((always_inline)) void fill(uint64_t key) {
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    x[0] = uint32_t(uint64_t(block)), x[1] = uint32_t(uint64_t(block) >> 32), x[2] = x[3] = 0;
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
      x[0] = uint32_t(b >> 32) ^ x[1] ^ k0, x[1] = uint32_t(b);
      x[2] = uint32_t(a >> 32) ^ x[3] ^ k1, x[3] = uint32_t(a);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }
  int64_t block = -1;
  uint32_t x[4];
};

MT_INLINE AdamWFactors factors_now(const AdamW& a) {
  if (!a.factors_in_memory.data) return factors_of(a);
  const float* f = data_of<float>(a.factors_in_memory);
  return {f[0], f[1], f[2]};
}

MT_INLINE AdamWRounding rounding_now(const AdamW& a) {
  AdamWRounding r = a.rounding;
  if (!a.keys_in_memory.data) return r;
  const int64_t* keys = data_of<int64_t>(a.keys_in_memory);
  r.key = uint64_t(keys[0]), r.moments_key = uint64_t(keys[1]);
  return r;
}

MT_INLINE int64_t number_of(const AdamWRounding& r, int64_t i) {
  const int64_t at = r.at + i;
  return r.first + (r.columns > 0 ? at / r.columns * r.stride + at % r.columns : at);
}

MT_INLINE bf16 round_at_random(float w, uint32_t random) {
  const uint32_t u = __builtin_bit_cast(uint32_t, w);
  if ((u & 0x7f800000u) == 0x7f800000u) return from_float<bf16>(w);  // infinity or NaN
  return __builtin_bit_cast(bf16, uint16_t((u + random) >> 16));
}

// With mhat = m / (1 - beta1^t) and vhat = v / (1 - beta2^t): w -= lr * (mhat / (sqrt(vhat) + eps)
// + weight_decay * w). L2 decay adds weight_decay * w to the gradient instead.
template <class M>
struct Update {
  explicit Update(const AdamW& a) : Update(a, factors_now(a)) {}
  Update(const AdamW& a, const AdamWFactors& f)
      : beta1(a.beta1),
        beta2(a.beta2),
        eps(a.eps),
        step_size(f.step_size),
        v_correction(f.v_correction),
        keep(f.keep),
        l2(a.decoupled_decay ? 0.0f : a.weight_decay),
        scale(a.grad_scale.data ? *data_of<float>(a.grad_scale) : 1.0f),
        m(data_of<M>(a.m)),
        v(data_of<M>(a.v)),
        grad(data_of<float>(a.grad)),
        rounding(rounding_now(a)) {}

  // Returns the weight of element i after the update, and writes its moments.
  template <class Lanes>
  __attribute__((always_inline)) Vf operator()(int64_t i, Vf w, Lanes lanes) const {
    Vf g = load(grad + i, lanes) * scale;
    if (l2 != 0.0f) g += l2 * w;
    const Vf m1 = beta1 * load(m + i, lanes) + (1.0f - beta1) * g;
    const Vf v1 = beta2 * load(v + i, lanes) + (1.0f - beta2) * (g * g);
    if constexpr (sizeof(M) == 4) {
      store(m + i, m1, lanes);
      store(v + i, v1, lanes);
    } else {
      store_moments(i, m1, v1, lanes.count);
    }
    return keep * w - step_size * m1 / (vsqrt(v1 * v_correction) + eps);
  }

  __attribute__((always_inline)) void store_moments(int64_t i, Vf m1, Vf v1, int count) const {
    Random random;
    for (int k = 0; k < count; ++k) {
      const uint32_t word = random.word(rounding.moments_key, number_of(rounding, i + k));
      m[i + k] = round_at_random(m1[k], word & 0xffff);
      v[i + k] = round_at_random(v1[k], word >> 16);
    }
  }

  float beta1, beta2, eps, step_size, v_correction, keep, l2, scale;
  M *m, *v;
  const float* grad;
  AdamWRounding rounding;
};

// Also writes the copy of the master weights for compute, as P, if there is one.
template <class P, class M>
void update_master(const AdamW& a, const Update<M>& update) {
  float* master = data_of<float>(a.master);
  P* param = data_of<P>(a.param);
  parallel(a.master.count, 16384, [=](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t j, auto lanes) {
      const int64_t i = begin + j;
      const Vf w = update(i, load(master + i, lanes), lanes);
      store(master + i, w, lanes);
      if (param) store(param + i, w, lanes);
    });
  });
}

template <class M>
void update_param(const AdamW& a, const Update<M>& update) {
  bf16* param = data_of<bf16>(a.param);
  parallel(a.param.count, 16384, [=, rounding = update.rounding](int64_t begin, int64_t end) {
    Random random;
    for_lanes(end - begin, [&](int64_t j, auto lanes) {
      const int64_t i = begin + j;
      const Vf w = update(i, load(param + i, lanes), lanes);
      if (!rounding.random) return store(param + i, w, lanes);
      for (int k = 0; k < lanes.count; ++k)
        param[i + k] = round_at_random(w[k], random.half(rounding.key, number_of(rounding, i + k)));
    });
  });
}

template <class M>
void run_with(const AdamW& a) {
  const Update<M> update(a);
  if (!__builtin_isfinite(update.scale)) return;
  if (!a.master.data) return update_param(a, update);
  a.param.dtype == DType::f16 ? update_master<f16>(a, update) : update_master<bf16>(a, update);
}

}  // namespace

void run(const AdamW& a) { a.m.dtype == DType::bf16 ? run_with<bf16>(a) : run_with<float>(a); }

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
