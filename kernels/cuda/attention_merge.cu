#include "kernels/attention_merge.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kWarps = 8;

// Each row (token, head) has a warp. A warp's next row is as far away as the grid has warps.
template <int N, class T>
__global__ void merge(const T* block_out, const float* block_lse, float* out, float* lse, int64_t B,
                      int64_t S, int64_t A, int64_t D, int64_t lse_stride) {
  const int lane = int(threadIdx.x);
  const int64_t step = int64_t(gridDim.x) * kWarps, rows = S * B * A;
  for (int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.y; row < rows; row += step) {
    const int64_t token = row / A, head = token % B * A + row % A, s = token / B;
    const float from_lse = block_lse[head * S + s];
    if (from_lse == -INFINITY) continue;
    float* const at = lse + head * lse_stride + s;
    const float before = *at;
    // The larger lse has weight 1, the other e^-difference: nothing overflows, and -inf has weight
    // 0.
    const bool larger = from_lse > before;
    const float e = expf(larger ? before - from_lse : from_lse - before);
    const float one = 1 / (1 + e), other = e * one;
    const float keep = larger ? other : one, take = larger ? one : other;
    __syncwarp();  // all lanes have read it
    if (lane == 0) *at = (larger ? from_lse : before) + log1pf(e);
    for (int64_t d = lane * N; d < D; d += kWarp * N) {
      float x[N], y[N];
      load<N>(block_out + row * D + d, x);
      load<N>(out + row * D + d, y);
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = y[j] * keep + x[j] * take;
      store<N>(out + row * D + d, y);
    }
  }
}

}  // namespace

void run(const AttentionMerge& a, CUstream_st* stream) {
  const int64_t rows = a.S * a.B * a.A;
  if (rows <= 0) return;
  with_float(a.block_out_TN.dtype, [&]<class T>() {
    const bool vectors = aligned({a.block_out_TN.data, a.out_TN.data}) && a.D % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      MT_LAUNCH((merge<N, T>), blocks_for(rows, kWarps), dim3(kWarp, kWarps), 0, stream,
                data<T>(a.block_out_TN), data<float>(a.block_lse), data<float>(a.out_TN),
                data<float>(a.lse), a.B, a.S, a.A, a.D, a.lse_stride);
    });
  });
}

}  // namespace mtrain::kernels::cuda
