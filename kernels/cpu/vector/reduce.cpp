#include "kernels/reduce.h"

#include "kernels/cpu/vector/rows.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 32768;  // elements per chunk, fixed: the sum's order depends on it
constexpr int kUnroll = 4;
constexpr int64_t kAhead = 4096;  // the distance of prefetching, in elements

// Sum of f(x) in fp64: lanes within a chunk, then the chunks in order.
template <class T, class F>
double sum_of(const T* x, int64_t count, const F& f) {
  const int64_t chunks = div_up(count, kGrain);
  const Scratch<double> sums(chunks);
  double* chunk_sums = sums.get();
  parallel(count, kGrain, [=](int64_t begin, int64_t end) {
    Vd low[kUnroll] = {}, high[kUnroll] = {};
    for_lanes_unrolled<kUnroll>(end - begin, [&](int64_t i, auto m, int k) {
      const Vf v = load(x + begin + i, m);
      prefetch(x + begin + i + kAhead);
      low[k] += f(low_f64(v));
      high[k] += f(high_f64(v));
    });
    for (int k = 1; k < kUnroll; ++k) low[0] += low[k], high[0] += high[k];
    chunk_sums[begin / kGrain] = sum_lanes(low[0] + high[0]);
  });
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += chunk_sums[c];
  return sum;
}

template <class T>
int64_t first_non_finite(const T* x, int64_t count) {
  const int64_t chunks = div_up(count, kGrain);
  const Scratch<int64_t> found(chunks);
  int64_t* chunk_found = found.get();
  parallel(count, kGrain, [=](int64_t begin, int64_t end) {
    Vf bad = {};  // NaN - NaN and Inf - Inf are NaN; a sum with NaN stays NaN
    for_lanes(end - begin, [&](int64_t i, auto m) {
      const Vf v = load(x + begin + i, m);
      bad += v - v;
    });
    int64_t& first = chunk_found[begin / kGrain];
    first = -1;
    if (sum_lanes(bad) == 0) return;
    for (int64_t i = begin; i < end && first < 0; ++i)
      if (!(to_float(x[i]) - to_float(x[i]) == 0)) first = i;
  });
  for (int64_t c = 0; c < chunks; ++c)
    if (chunk_found[c] >= 0) return chunk_found[c];
  return -1;
}

}  // namespace

void run(const SumSquares& a) {
  with_float(a.x.dtype, [&]<class T>() {
    *data_of<double>(a.out) += sum_of(data_of<T>(a.x), a.x.count, [](Vd v) { return v * v; });
  });
}

void run(const Sum& a) {
  with_float(a.x.dtype, [&]<class T>() {
    *data_of<double>(a.out) += sum_of(data_of<T>(a.x), a.x.count, [](Vd v) { return v; });
  });
}

void run(const FirstNonFinite& a) {
  with_float(a.x.dtype, [&]<class T>() {
    *data_of<int64_t>(a.out) = first_non_finite(data_of<T>(a.x), a.x.count);
  });
}

void run(const ColumnSum& a) {
  if (a.T <= 0 || a.N <= 0) return;
  const int64_t rows = rows_per_chunk(a.T, a.N), chunks = div_up(a.T, rows);
  const Scratch<float> sums(chunks * a.N);
  with_float(a.x_TN.dtype, [&]<class T>() {
    parallel(a.T, rows, [&](int64_t begin, int64_t end) {
      const T* x = data_of<T>(a.x_TN);
      float* sum = sums.get() + begin / rows * a.N;
      __builtin_memset(sum, 0, size_t(a.N) * sizeof(float));
      int64_t t = begin;
      for (; t + 4 <= end; t += 4) {  // four rows for one pass over `sum`
        const T* r = x + t * a.N;
        for_lanes(a.N, [=, n = a.N](int64_t i, auto m) {
          const Vf four = (load(r + i, m) + load(r + n + i, m)) +
                          (load(r + 2 * n + i, m) + load(r + 3 * n + i, m));
          store(sum + i, load(sum + i, m) + four, m);
        });
      }
      for (; t < end; ++t) {
        const T* r = x + t * a.N;
        for_lanes(a.N,
                  [=](int64_t i, auto m) { store(sum + i, load(sum + i, m) + load(r + i, m), m); });
      }
    });
  });
  add_chunks(sums.get(), chunks, a.N, a.N, data_of<float>(a.out_N));
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
