#include "kernels/norm.h"

#include "kernels/cpu/vector/amax.h"
#include "kernels/cpu/vector/rows.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int kUnroll = 4;

// Returns where row r = token * heads + head starts.
template <class Args>
MT_INLINE int64_t row_start(const Args& a, int64_t r) {
  const int64_t stride = a.token_stride ? a.token_stride : a.heads * a.H;
  return r / a.heads * stride + r % a.heads * a.H;
}

MT_INLINE float total(const Vf (&acc)[kUnroll]) {
  return sum_lanes((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// Returns the factor of a norm: w, or 1 + w.
template <bool ONE, class T, class M>
MT_INLINE Vf factor(const T* w, const M& m) {
  const Vf v = load(w, m);
  return ONE ? v + 1.0f : v;
}

template <bool LAYER, bool ONE, class T>
void forward_rows(const NormForward& a, int64_t begin, int64_t end) {
  const int64_t H = a.H;
  const T *w = data_of<T>(a.w_H), *b = data_of<T>(a.b_H);
  const float* sum_T = data_of<float>(a.sum_T);
  const float width = float(sum_T ? a.width : H);
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = row_start(a, r);
    const T* x = data_of<T>(a.x_TH) + start;
    T* y = data_of<T>(a.y_TH) + start;
    // Statistics are computed from the stored, rounded sum: backward reads the same numbers.
    Vf acc[kUnroll] = {};
    if (a.residual_TH.data) {
      const T* residual = data_of<T>(a.residual_TH) + start;
      T* sum = data_of<T>(a.sum_TH) + start;
      for_lanes_unrolled<kUnroll>(H, [&](int64_t i, auto m, int k) {
        const Vf v = round_to<T>(load(x + i, m) + load(residual + i, m));
        store(sum + i, v, m);
        acc[k] += LAYER ? v : v * v;
      });
      x = sum;
    } else if (!sum_T) {
      for_lanes_unrolled<kUnroll>(H, [&](int64_t i, auto m, int k) {
        const Vf v = load(x + i, m);
        acc[k] += LAYER ? v : v * v;
      });
    }
    float mean = 0, squares = sum_T ? sum_T[r] : total(acc);
    if (LAYER) {
      mean = squares / float(H);
      Vf deviation[kUnroll] = {};
      for_lanes_unrolled<kUnroll>(H, [&](int64_t i, auto m, int k) {
        const Vf d = only(load(x + i, m) - mean, m);
        deviation[k] += d * d;
      });
      squares = total(deviation);
    }
    const float rstd = 1.0f / __builtin_sqrtf(squares / width + a.eps);
    for_lanes(H, [=](int64_t i, auto m) {
      Vf v = (load(x + i, m) - mean) * rstd * factor<ONE>(w + i, m);
      if (LAYER && b) v += load(b + i, m);
      store(y + i, v, m);
    });
    raise_amax(a.amax, y, H);
    if (a.rstd_T.data) data_of<float>(a.rstd_T)[r] = rstd;
    if (a.mean_T.data) data_of<float>(a.mean_T)[r] = mean;
  }
}

// With xhat = (x - mean) rstd and g = dy w: dx = rstd (g - [mean of g] - xhat * mean of (g xhat)),
// [] in layer norm only; dw += dy xhat; db += dy.
template <bool LAYER, bool ONE, class T>
void backward_rows(const NormBackward& a, int64_t begin, int64_t end, float* dw, float* db) {
  const int64_t H = a.H;
  const T* w = data_of<T>(a.w_H);
  const float* sum_T = data_of<float>(a.sum_T);
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = row_start(a, r);
    const T *x = data_of<T>(a.x_TH) + start, *dy = data_of<T>(a.dy_TH) + start;
    const T* dresidual = a.dresidual_TH.data ? data_of<T>(a.dresidual_TH) + start : nullptr;
    T* dx = data_of<T>(a.dx_TH) + start;
    const float rstd = data_of<float>(a.rstd_T)[r];
    const float mean = LAYER ? data_of<float>(a.mean_T)[r] : 0.0f;
    Vf sum_g[kUnroll] = {}, sum_gx[kUnroll] = {};
    if (!sum_T)
      for_lanes_unrolled<kUnroll>(H, [&](int64_t i, auto m, int k) {
        const Vf g = load(dy + i, m) * factor<ONE>(w + i, m);
        sum_gx[k] += g * ((load(x + i, m) - mean) * rstd);
        if (LAYER) sum_g[k] += g;
      });
    const float mean_gx = sum_T ? sum_T[r] / float(a.width) : total(sum_gx) / float(H);
    const float mean_g = LAYER ? total(sum_g) / float(H) : 0.0f;
    for_lanes(H, [=](int64_t i, auto m) {
      const Vf d = load(dy + i, m), xhat = (load(x + i, m) - mean) * rstd;
      Vf v = rstd * (d * factor<ONE>(w + i, m) - mean_g - xhat * mean_gx);
      if (dresidual) v += load(dresidual + i, m);
      store(dx + i, v, m);
      store(dw + i, load(dw + i, m) + d * xhat, m);
      if (db) store(db + i, load(db + i, m) + d, m);
    });
    raise_amax(a.amax, dx, H);
  }
}

template <bool ONE, class T>
void sum_rows(const NormSums& a, int64_t begin, int64_t end) {
  const T* w = data_of<T>(a.w_H);
  for (int64_t r = begin; r < end; ++r) {
    const int64_t start = r * a.token_stride;
    const T *x = data_of<T>(a.x_TH) + start,
            *dy = a.dy_TH.data ? data_of<T>(a.dy_TH) + start : nullptr;
    const float rstd = dy ? data_of<float>(a.rstd_T)[r] : 1.0f;
    Vf acc[kUnroll] = {};
    for_lanes_unrolled<kUnroll>(a.H, [&](int64_t i, auto m, int k) {
      const Vf v = load(x + i, m);
      acc[k] += dy ? load(dy + i, m) * factor<ONE>(w + i, m) * (v * rstd) : v * v;
    });
    data_of<float>(a.sum_T)[r] = total(acc);
  }
}

// Calls fn<LAYER, ONE>().
template <class Args, class Fn>
MT_INLINE void with_form(const Args& a, const Fn& fn) {
  if (a.kind == NormKind::layer)
    a.plus_one ? fn.template operator()<true, true>() : fn.template operator()<true, false>();
  else
    a.plus_one ? fn.template operator()<false, true>() : fn.template operator()<false, false>();
}

}  // namespace

void run(const NormForward& a) {
  const int64_t rows = max_of(1, 16384 / a.H);  // per chunk
  with_float(a.x_TH.dtype, [&]<class T>() {
    parallel(a.T * a.heads, rows, [&](int64_t begin, int64_t end) {
      with_form(a, [&]<bool LAYER, bool ONE>() { forward_rows<LAYER, ONE, T>(a, begin, end); });
    });
  });
}

void run(const NormBackward& a) {
  const int64_t rows = a.T * a.heads, per_chunk = rows_per_chunk(rows, a.H),
                chunks = div_up(rows, per_chunk);
  if (rows == 0) return;
  const int64_t width = a.db_H.data ? 2 * a.H : a.H;  // a chunk's sums: dw, then db
  const Scratch<float> sums(chunks * width);
  with_float(a.x_TH.dtype, [&]<class T>() {
    parallel(rows, per_chunk, [&](int64_t begin, int64_t end) {
      float* dw = sums.get() + begin / per_chunk * width;
      float* db = a.db_H.data ? dw + a.H : nullptr;
      __builtin_memset(dw, 0, size_t(width) * sizeof(float));
      with_form(
          a, [&]<bool LAYER, bool ONE>() { backward_rows<LAYER, ONE, T>(a, begin, end, dw, db); });
    });
  });
  add_chunks(sums.get(), chunks, width, a.H, data_of<float>(a.dw_H));
  if (a.db_H.data) add_chunks(sums.get() + a.H, chunks, width, a.H, data_of<float>(a.db_H));
}

void run(const NormSums& a) {
  with_float(a.x_TH.dtype, [&]<class T>() {
    parallel(a.T, max_of(1, 16384 / a.H), [&](int64_t begin, int64_t end) {
      a.plus_one ? sum_rows<true, T>(a, begin, end) : sum_rows<false, T>(a, begin, end);
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
