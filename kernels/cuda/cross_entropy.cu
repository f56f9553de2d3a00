// A block has one row at a time. It reads the row once for the maximum and the sum and once for the
// gradient, the second time from shared memory if the row fits. Each multiprocessor has one block:
// the rest of their rows then fits into the L2 cache.
#include "kernels/cross_entropy.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/softcap.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr float kLog2E = 1.44269504088896341f;

struct RowSum {
  float max;  // running maximum m
  float sum;  // running sum of e^(x - m)
};

// Returns what is subtracted before an exponential: the maximum, or 0 if all logits so far are -inf
// (-inf - -inf would be NaN).
__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0.0f : max; }
__device__ __forceinline__ float exp_of(float x) { return fast_exp2(x * kLog2E); }

template <int N, class Cap>
__device__ __forceinline__ void include(RowSum& row, float (&v)[N], Cap cap) {
#pragma unroll
  for (int j = 0; j < N; ++j) v[j] = capped(v[j], cap);
  float max = row.max;
#pragma unroll
  for (int j = 0; j < N; ++j) max = fmaxf(max, v[j]);  // ignores a NaN; the sum preserves it
  const float shift = shift_of(max);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) sum += exp_of(v[j] - shift);
  row.sum = row.sum * exp_of(row.max - shift) + sum;
  row.max = max;
}

// Returns the block's maximum and sum, the same to every thread. `slots` is shared memory for a
// value of each warp.
__device__ __forceinline__ RowSum combine(RowSum row, float* slots) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float in_warp = warp_max(row.max);
  if (lane == 0) slots[warp] = in_warp;
  __syncthreads();
  const float max = warp_max(slots[lane]), shift = shift_of(max);
  __syncthreads();
  // The maxima ignore a NaN; the sum preserves it.
  return {max, row_sum(row.sum * exp_of(row.max - shift), kWarps, slots)};
}
static_assert(kWarps == kWarp);

constexpr int kAhead = 4;  // vectors of a thread, in flight together

// Returns the number of full vectors in a row of V; without alignment there are none.
template <int N>
__device__ __forceinline__ int vectors_of(int64_t V) {
  return N > 1 ? int(V / N) : 0;
}

// Keeps the first `keep` vectors in shared memory: each is read and written by only one thread.
template <int N, class T, class Cap>
__device__ __forceinline__ RowSum read_row(const T* x, int64_t V, int keep, float* slots, Cap cap) {
  RowSum row{-INFINITY, 0};
  const int whole = vectors_of<N>(V);
  if constexpr (N > 1) {
    uint4* const kept = dynamic_shared<uint4>();
    for (int i = int(threadIdx.x); i < whole; i += kAhead * kThreads) {
      uint4 words[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (i + k * kThreads < whole) words[k] = load_words(x + int64_t(i + k * kThreads) * N);
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (const int at = i + k * kThreads; at < whole) {
          if (at < keep) kept[at] = words[k];
          float v[N];
          unpack<T>(words[k], v);
          include<N>(row, v, cap);
        }
    }
  }
  for (int64_t at = int64_t(whole) * N + threadIdx.x; at < V; at += kThreads) {
    float v[1] = {load_one(x + at)};
    include<1>(row, v, cap);
  }
  return combine(row, slots);
}

// Sets x[i] to scale e^(x[i] - log_sum) for i < V, minus scale at the label (a negative label is in
// no row), and to 0 in the padding up to `columns`. With a cap, the x[i] on the right are the
// capped logits, and the result is multiplied by the cap's slope. `keep` is the same as when the
// row was read.
template <int N, class T, class Cap>
__device__ __forceinline__ void write_gradient(T* x, int64_t V, int64_t columns, double log_sum,
                                               float scale, int64_t label, double at_label,
                                               int keep, Cap cap) {
  const float shift = float(log_sum);
  const int whole = vectors_of<N>(V);
  const auto gradient = [=](float v) {
    return through_cap(scale * exp_of(capped(v, cap) - shift), v, cap);
  };
  // The thread that writes the label's vector writes the label again afterwards.
  const int64_t rest = int64_t(whole) * N, turn = label < rest ? label / N : label - rest;
  const bool has_label = label >= 0 && turn % kThreads == threadIdx.x;
  const float raw = has_label ? load_one(x + label) : 0.0f;
  if constexpr (N > 1) {
    const auto write = [=](int at, const uint4& words) {
      float v[N];
      unpack<T>(words, v);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = gradient(v[j]);
      store<N>(x + int64_t(at) * N, v);
    };
    // The vectors that are not in shared memory were read last: the L2 cache may hold them.
    for (int i = keep + int(threadIdx.x); i < whole; i += kAhead * kThreads) {
      uint4 words[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (i + k * kThreads < whole) words[k] = load_words(x + int64_t(i + k * kThreads) * N);
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (i + k * kThreads < whole) write(i + k * kThreads, words[k]);
    }
    const uint4* const kept = dynamic_shared<uint4>();
    for (int i = int(threadIdx.x); i < min(keep, whole); i += kThreads) write(i, kept[i]);
  }
  for (int64_t i = rest + threadIdx.x; i < columns; i += kThreads)
    store_one(x + i, i < V ? gradient(load_one(x + i)) : 0.0f);
  if (has_label)
    store_one(x + label, through_cap(scale * float(expm1(at_label - log_sum)), raw, cap));
}
template <int N, class T>
__device__ __forceinline__ void clear_row(T* x, int64_t columns) {
  const float zero[N] = {};
  for (int64_t i = threadIdx.x; i < columns / N; i += kThreads) store<N>(x + i * N, zero);
  if (const int64_t i = columns / N * N + threadIdx.x; i < columns) store_one(x + i, 0.0f);
}

template <class T>
struct Logits {
  T* data;
  int64_t count, T_, V, row_stride;
  __device__ __forceinline__ T* row(int64_t t) const { return data + t * row_stride; }
  // Returns how many elements of row t may be written: the last row may end with the true
  // vocabulary.
  __device__ __forceinline__ int64_t columns(int64_t t) const {
    return t + 1 == T_ ? min(row_stride, count - t * row_stride) : row_stride;
  }
};
struct Gradient {
  float given;
  bool write;
  const float* in_memory;  // replaces `given` unless null
  __device__ __forceinline__ float scale() const { return in_memory ? *in_memory : given; }
};

// A kernel cannot report a label outside of the vocabulary: its loss is NaN.
__device__ __forceinline__ float checked(double loss, bool known) {
  return known ? float(loss) : __uint_as_float(0x7fc00000u);
}

template <int N, class T, class Cap>
__global__ void __launch_bounds__(kThreads)
    full_rows(Logits<T> logits, const int32_t* label_T, float* loss_T, Gradient gradient, int keep,
              Cap cap) {
  __shared__ float slots[kWarp];
  for (int64_t t = blockIdx.x; t < logits.T_; t += gridDim.x) {
    T* const x = logits.row(t);
    const int64_t label = label_T[t];
    if (label < 0) {
      if (threadIdx.x == 0) loss_T[t] = 0;
      if (gradient.write) clear_row<N>(x, logits.columns(t));
      continue;
    }
    const bool known = label < logits.V;
    const float at_label = known ? capped(load_one(x + label), cap) : 0.0f;
    // The barriers in read_row() ensure that all threads have read at_label.
    const RowSum row = read_row<N>(x, logits.V, keep, slots, cap);
    const double log_sum = double(shift_of(row.max)) + log(double(row.sum));
    if (threadIdx.x == 0) loss_T[t] = checked(log_sum - double(at_label), known);
    if (!gradient.write) continue;
    write_gradient<N>(x, logits.V, logits.columns(t), log_sum, gradient.scale(), known ? label : -1,
                      double(at_label), keep, cap);
  }
}

template <int N, class T, class Cap>
__global__ void __launch_bounds__(kThreads)
    part_sums(Logits<const T> logits, const int32_t* label_T, float* sums_T3, int64_t first,
              Cap cap) {
  __shared__ float slots[kWarp];
  for (int64_t t = blockIdx.x; t < logits.T_; t += gridDim.x) {
    const T* const x = logits.row(t);
    const int64_t label = int64_t(label_T[t]) - first;
    const RowSum row = read_row<N>(x, logits.V, 0, slots, cap);
    if (threadIdx.x != 0) continue;
    float* const sums = sums_T3 + t * kCrossEntropySums;
    sums[0] = row.max;
    sums[1] = row.sum;
    sums[2] = label >= 0 && label < logits.V ? capped(load_one(x + label), cap) : 0.0f;
  }
}

template <int N, class T, class Cap>
__global__ void __launch_bounds__(kThreads)
    rows_from_sums(Logits<T> logits, const int32_t* label_T, const float* sums_PT3, int64_t P,
                   float* loss_T, int64_t first, int64_t vocabulary, Gradient gradient, Cap cap) {
  for (int64_t t = blockIdx.x; t < logits.T_; t += gridDim.x) {
    T* const x = logits.row(t);
    const int64_t label = label_T[t];
    if (label < 0) {
      if (threadIdx.x == 0) loss_T[t] = 0;
      if (gradient.write) clear_row<N>(x, logits.columns(t));
      continue;
    }
    // Every thread adds up the few numbers of the ranks, in the same order.
    const float* const sums = sums_PT3 + t * kCrossEntropySums;
    const int64_t stride = logits.T_ * kCrossEntropySums;
    float max = -INFINITY;
    for (int64_t p = 0; p < P; ++p) max = fmaxf(max, sums[p * stride]);
    const double shift = double(shift_of(max));
    double sum = 0, at_label = 0;
    for (int64_t p = 0; p < P; ++p) {
      sum += double(sums[p * stride + 1]) * exp(double(sums[p * stride]) - shift);
      at_label += double(sums[p * stride + 2]);
    }
    const double log_sum = shift + log(sum);
    if (threadIdx.x == 0) loss_T[t] = checked(log_sum - at_label, label < vocabulary);
    if (gradient.write) {
      const int64_t here = label - first;
      write_gradient<N>(x, logits.V, logits.columns(t), log_sum, gradient.scale(),
                        here >= 0 && here < logits.V ? here : -1, at_label, 0, cap);
    }
  }
}

// Returns how many vectors of a row shared memory keeps, the same number for each thread.
template <int N>
int vectors_kept(const CrossEntropy& a) {
  if (N == 1 || !a.write_grad) return 0;
  constexpr int64_t kOfAll = int64_t(kThreads) * 16, kStatic = 1024;
  const int64_t most = (max_shared_memory() - kStatic) / kOfAll;
  return int(std::min(most, div_up(a.V / N, kThreads)) * kThreads);
}

template <class T, class Args, class F>
void with_logits_width(const Args& a, const F& f) {
  with_width<T>(aligned({a.logits_TV.data}) && a.row_stride % kVector<T> == 0, f);
}

}  // namespace

void run(const CrossEntropy& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  with_float(a.logits_TV.dtype, [&]<class T>() {
    with_logits_width<T>(a, [&]<int N>() {
      const int keep = vectors_kept<N>(a);
      with_cap(a.logit_cap, [&]<class Cap>(Cap cap) {
        MT_LAUNCH((full_rows<N, T, Cap>), blocks_for(a.T, 1), kThreads, keep * 16, stream,
                  (Logits<T>{data<T>(a.logits_TV), a.logits_TV.count, a.T, a.V, a.row_stride}),
                  data<int32_t>(a.label_T), data<float>(a.loss_T),
                  (Gradient{a.grad_scale, a.write_grad, data<float>(a.scale_in_memory)}), keep,
                  cap);
      });
    });
  });
}

void run(const CrossEntropySums& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  with_float(a.logits_TV.dtype, [&]<class T>() {
    with_logits_width<T>(a, [&]<int N>() {
      with_cap(a.logit_cap, [&]<class Cap>(Cap cap) {
        MT_LAUNCH(
            (part_sums<N, T, Cap>), blocks_for(a.T, 1), kThreads, 0, stream,
            (Logits<const T>{data<T>(a.logits_TV), a.logits_TV.count, a.T, a.V, a.row_stride}),
            data<int32_t>(a.label_T), data<float>(a.sums_T3), a.first, cap);
      });
    });
  });
}

void run(const CrossEntropyFromSums& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  with_float(a.logits_TV.dtype, [&]<class T>() {
    with_logits_width<T>(a, [&]<int N>() {
      with_cap(a.logit_cap, [&]<class Cap>(Cap cap) {
        MT_LAUNCH((rows_from_sums<N, T, Cap>), blocks_for(a.T, 1), kThreads, 0, stream,
                  (Logits<T>{data<T>(a.logits_TV), a.logits_TV.count, a.T, a.V, a.row_stride}),
                  data<int32_t>(a.label_T), data<float>(a.sums_PT3), a.P, data<float>(a.loss_T),
                  a.first, a.vocabulary,
                  (Gradient{a.grad_scale, a.write_grad, data<float>(a.scale_in_memory)}), cap);
      });
    });
  });
}

}  // namespace mtrain::kernels::cuda
