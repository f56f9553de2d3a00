#include "kernels/cross_entropy.h"

#include <type_traits>

#include "kernels/cpu/vector/softcap.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int kUnroll = 4;
// Columns of a chunk. It is read twice (maximum, exponentials) while it is in the L1 cache.
constexpr int64_t kChunk = 2048;

struct RowSum {
  float max;   // running maximum m
  double sum;  // running sum of e^(x - m)
};

// Returns what is subtracted before an exponential: the maximum, or 0 if all logits so far are -inf
// (-inf - -inf would be NaN).
MT_INLINE float shift_of(float max) { return max == -__builtin_inff() ? 0.0f : max; }

template <class T>
float chunk_max(const T* x, int64_t n) {
  Vf top[kUnroll];
  for (Vf& v : top) v = splat(-__builtin_inff());
  const Vf lowest = splat(-__builtin_inff());
  for_lanes_unrolled<kUnroll>(n, [&](int64_t i, auto m, int k) {
    // vmax() ignores a NaN; the sum preserves it.
    top[k] = vmax(first_lanes(m, load(x + i, m), lowest), top[k]);
  });
  return max_lanes(vmax(vmax(top[0], top[1]), vmax(top[2], top[3])));
}

// Reads the row once, chunk by chunk; the sum is over capped logits. If `shifts` is given, x (fp32,
// which the gradient will overwrite) becomes e^(x - shifts[chunk]): the second pass then needs no
// exponential.
template <class X, class Cap>
RowSum read_row(X* x, int64_t V, float* shifts, Cap cap) {
  RowSum row{-__builtin_inff(), 0};
  for (int64_t c = 0; c < V; c += kChunk) {
    const int64_t n = min_of(kChunk, V - c);
    const float max = capped(chunk_max(x + c, n), cap);  // a cap is monotonic
    if (max > row.max) {
      row.sum *= double(__builtin_expf(row.max - max));
      row.max = max;
    }
    const float shift = shift_of(row.max);
    Vf acc[kUnroll] = {};
    for_lanes_unrolled<kUnroll>(n, [&](int64_t i, auto m, int k) {
      const Vf e = only(vexp(capped(load(x + c + i, m), cap) - shift), m);
      prefetch(x + c + kChunk + i);
      acc[k] += e;
      if constexpr (!std::is_const_v<X>)
        if (shifts) store(x + c + i, e, m);
    });
    if (shifts) shifts[c / kChunk] = shift;
    row.sum += double(sum_lanes((acc[0] + acc[1]) + (acc[2] + acc[3])));
  }
  return row;
}

template <class T, class Cap>
void row_gradient(T* x, int64_t V, const float* shifts, double log_sum, float scale, Cap cap) {
  if (shifts) {
    for (int64_t c = 0; c < V; c += kChunk) {
      const float factor = scale * float(__builtin_exp(double(shifts[c / kChunk]) - log_sum));
      for_lanes(min_of(kChunk, V - c),
                [=](int64_t i, auto m) { store(x + c + i, load(x + c + i, m) * factor, m); });
    }
  } else {
    const float shift = float(log_sum);
    for_lanes(V, [=](int64_t i, auto m) {
      const Vf v = load(x + i, m);
      store(x + i, through_cap(scale * vexp(capped(v, cap) - shift), v, cap), m);
    });
  }
}

// Returns how many elements of row t may be written: the last row may end with the true vocabulary.
template <class Args>
MT_INLINE int64_t columns_of(const Args& a, int64_t t) {
  return t + 1 == a.T ? min_of(a.row_stride, a.logits_TV.count - t * a.row_stride) : a.row_stride;
}

template <class T, class Cap>
void rows(const CrossEntropy& a, Cap cap, int64_t begin, int64_t end) {
  // 16 bits would round the exponentials, and a cap's slope needs the logits.
  constexpr bool kKeepExp = sizeof(T) == 4 && std::is_same_v<Cap, NoCap>;
  const Scratch<float> shifts(div_up(a.V, kChunk));
  const float scale = a.scale_in_memory.data ? *data_of<float>(a.scale_in_memory) : a.grad_scale;
  for (int64_t t = begin; t < end; ++t) {
    T* x = data_of<T>(a.logits_TV) + t * a.row_stride;
    const int64_t label = data_of<int32_t>(a.label_T)[t];
    float& loss = data_of<float>(a.loss_T)[t];
    const int64_t columns = columns_of(a, t);
    if (label < 0) {
      loss = 0;
      if (a.write_grad) __builtin_memset(static_cast<void*>(x), 0, size_t(columns) * sizeof(T));
      continue;
    }
    const float raw = to_float(x[label]), at_label = capped(raw, cap);
    float* kept = kKeepExp && a.write_grad ? shifts.get() : nullptr;
    const RowSum row = read_row(x, a.V, kept, cap);
    const double log_sum = double(shift_of(row.max)) + __builtin_log(row.sum);
    loss = float(log_sum - double(at_label));
    if (!a.write_grad) continue;
    row_gradient(x, a.V, kept, log_sum, scale, cap);
    x[label] = from_float<T>(
        through_cap(scale * float(__builtin_expm1(double(at_label) - log_sum)), raw, cap));
    __builtin_memset(static_cast<void*>(x + a.V), 0, size_t(columns - a.V) * sizeof(T));
  }
}

template <class T, class Cap>
void rows(const CrossEntropySums& a, Cap cap, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const T* x = data_of<T>(a.logits_TV) + t * a.row_stride;
    const int64_t label = data_of<int32_t>(a.label_T)[t] - a.first;
    const RowSum row = read_row(x, a.V, nullptr, cap);
    float* sums = data_of<float>(a.sums_T3) + t * kCrossEntropySums;
    sums[0] = row.max;
    sums[1] = float(row.sum);
    sums[2] = label >= 0 && label < a.V ? capped(to_float(x[label]), cap) : 0.0f;
  }
}

template <class T, class Cap>
void rows(const CrossEntropyFromSums& a, Cap cap, int64_t begin, int64_t end) {
  const float scale = a.scale_in_memory.data ? *data_of<float>(a.scale_in_memory) : a.grad_scale;
  for (int64_t t = begin; t < end; ++t) {
    T* x = data_of<T>(a.logits_TV) + t * a.row_stride;
    const int64_t label = data_of<int32_t>(a.label_T)[t], here = label - a.first;
    float& loss = data_of<float>(a.loss_T)[t];
    const int64_t columns = columns_of(a, t);
    if (label < 0) {
      loss = 0;
      if (a.write_grad) __builtin_memset(static_cast<void*>(x), 0, size_t(columns) * sizeof(T));
      continue;
    }
    const auto sums = [&](int64_t p) {
      return data_of<float>(a.sums_PT3) + (p * a.T + t) * kCrossEntropySums;
    };
    float max = -__builtin_inff();
    for (int64_t p = 0; p < a.P; ++p) max = sums(p)[0] > max ? sums(p)[0] : max;
    double sum = 0, at_label = 0;
    for (int64_t p = 0; p < a.P; ++p) {
      sum += double(sums(p)[1]) * __builtin_exp(double(sums(p)[0]) - double(shift_of(max)));
      at_label += double(sums(p)[2]);
    }
    const double log_sum = double(shift_of(max)) + __builtin_log(sum);
    loss = float(log_sum - at_label);
    if (!a.write_grad) continue;
    const bool mine = here >= 0 && here < a.V;
    const float raw = mine ? to_float(x[here]) : 0.0f;
    row_gradient(x, a.V, nullptr, log_sum, scale, cap);
    if (mine)
      x[here] =
          from_float<T>(through_cap(scale * float(__builtin_expm1(at_label - log_sum)), raw, cap));
    __builtin_memset(static_cast<void*>(x + a.V), 0, size_t(columns - a.V) * sizeof(T));
  }
}

// Splits the rows of V logits among all threads.
template <class Args>
MT_INLINE void run_rows(const Args& a) {
  with_float(a.logits_TV.dtype, [&]<class T>() {
    with_cap(a.logit_cap, [&]<class Cap>(Cap cap) {
      parallel(a.T, max_of(1, 16384 / max_of(a.V, 1)),
               [&](int64_t begin, int64_t end) { rows<T>(a, cap, begin, end); });
    });
  });
}

}  // namespace

void run(const CrossEntropySums& a) { run_rows(a); }
void run(const CrossEntropyFromSums& a) { run_rows(a); }

void run(const CrossEntropy& a) { run_rows(a); }

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
