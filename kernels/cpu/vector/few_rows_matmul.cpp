// kernels/cpu/few_rows_matmul.h: a vector holds kLanes columns of C, whose sums run over k in
// order, as in kernels/cpu/gemm.h. Squares of B are transposed in registers. The rows of B are
// contiguous: the rows of the next columns are prefetched at a fixed distance.
#include "kernels/cpu/few_rows_matmul.h"

#include "kernels/cpu/vector/gemm_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

// sum[m] += sum over j of a[m * K + j] * line[j], for j in [0, count).
template <int M>
MT_INLINE void add_square(const float* a, int64_t K, const Vf (&line)[kLanes], int64_t count,
                          Vf (&sum)[M]) {
  if (count == kLanes) {
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m] += splat(a[m * K + j]) * line[j];
  } else {
    for (int j = 0; j < count; ++j)
      for (int m = 0; m < M; ++m) sum[m] += splat(a[m * K + j]) * line[j];
  }
}

template <class T, int M>
MT_INLINE void columns(const FewRowsMatmul& f, int64_t n0) {
  const int64_t K = f.K, count = min_of(kLanes, f.N - n0);
  const float* a = data_of<float>(f.a_MK);
  const T* b = data_of<T>(f.b_NK) + n0 * K;
  Vf total[M]{};
  for (int64_t k0 = 0; k0 < K; k0 += f.k_block) {
    const int64_t k1 = min_of(K, k0 + f.k_block);
    Vf sum[M]{};
    for (int64_t k = k0; k < k1; k += kLanes) {
      const int64_t width = min_of(kLanes, k1 - k);
      Vf line[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const T* row = b + min_of(i, count - 1) * K + k;
        prefetch(row + kLanes * K);
        line[i] = width == kLanes ? load(row) : load(row, Part{int(width)});
      }
      transpose(line);
      add_square<M>(a + k, K, line, width, sum);
    }
    for (int m = 0; m < M; ++m) total[m] = k0 == 0 ? sum[m] : sum[m] + total[m];
  }
  const auto finish = [&](auto lanes) {
    with_float(f.c_MN.dtype, [&]<class C>() {
      for (int m = 0; m < M; ++m) {
        Vf x = total[m];
        if (f.bias_N) x += load(data_of<float>(f.bias_N) + n0, lanes);
        store(data_of<C>(f.c_MN) + m * f.N + n0, x, lanes);
      }
    });
  };
  count == kLanes ? finish(Full{}) : finish(Part{int(count)});
}

template <class T, int M = 1>
MT_INLINE void columns_of(const FewRowsMatmul& f, int64_t n0) {
  if constexpr (M + 1 < kMinPackedRows)
    if (f.M != M) return columns_of<T, M + 1>(f, n0);
  columns<T, M>(f, n0);
}

}  // namespace

void run(const FewRowsMatmul& f);
void run(const FewRowsMatmul& f) {
  constexpr int64_t kBytes = 1 << 16;  // size of B in a task
  with_float(f.b_NK.dtype, [&]<class T>() {
    const int64_t groups = div_up(f.N, kLanes), group = kLanes * f.K * int64_t(sizeof(T));
    parallel(groups, max_of(1, kBytes / group), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) columns_of<T>(f, i * kLanes);
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
