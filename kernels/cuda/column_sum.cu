#include "kernels/cuda/device/column_sum.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kSlices = 32;  // slices of the rows, in a block of 32 columns

__global__ void add_rows(const float* partials, int64_t rows, int64_t stride, int64_t width,
                         float* out) {
  wait_for_previous_kernel();
  __shared__ float sums[kSlices][kWarp + 1];
  const int64_t column = int64_t(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int64_t r = threadIdx.y; r < rows; r += kSlices) sum += partials[r * stride + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Now a warp has the slices of one column.
  const float total = warp_sum(sums[threadIdx.x][threadIdx.y]);
  const int64_t mine = int64_t(blockIdx.x) * kWarp + threadIdx.y;
  if (threadIdx.x == 0 && mine < width) out[mine] += total;
}

// Rows blockIdx.y, blockIdx.y + gridDim.y, ... in groups of blockDim.y; the block's groups are
// added in order.
constexpr int kColumnThreads = 32, kRowThreads = 8;
template <int N, class T>
__global__ void column_sums(const T* x, int64_t rows, int64_t width, float* partials) {
  wait_for_previous_kernel();
  __shared__ float sums[kRowThreads][kColumnThreads * N];
  const int64_t column = (int64_t(blockIdx.x) * kColumnThreads + threadIdx.x) * N;
  float sum[N] = {};
  if (column < width) {
    const int64_t step = int64_t(gridDim.y) * kRowThreads;
#pragma unroll 4
    for (int64_t r = int64_t(blockIdx.y) * kRowThreads + threadIdx.y; r < rows; r += step) {
      float v[N];
      load<N>(x + r * width + column, v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += v[j];
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[threadIdx.y][threadIdx.x * N + j] = sum[j];
  __syncthreads();
  const int thread = int(threadIdx.y * kColumnThreads + threadIdx.x);
  for (int i = thread; i < kColumnThreads * N; i += kColumnThreads * kRowThreads) {
    const int64_t at = int64_t(blockIdx.x) * kColumnThreads * N + i;
    if (at >= width) continue;
    float total = 0;
#pragma unroll
    for (int g = 0; g < kRowThreads; ++g) total += sums[g][i];
    partials[int64_t(blockIdx.y) * width + at] = total;
  }
}

}  // namespace

void add_partials(const float* partials, int64_t rows, int64_t stride, int64_t width, float* out,
                  CUstream_st* stream) {
  if (width <= 0) return;
  MT_LAUNCH_DEPENDENT(add_rows, unsigned(div_up(width, kWarp)), dim3(kWarp, kSlices), 0, stream,
                      partials, rows, stride, width, out);
}

void run(const ColumnSum& a, CUstream_st* stream) {
  if (a.T <= 0 || a.N <= 0) return;
  with_float(a.x_TN.dtype, [&]<class T>() {
    with_width<T>(aligned({a.x_TN.data}) && a.N % kVector<T> == 0, [&]<int N>() {
      // Uses as many blocks as the largest GPUs run at once, with at least eight rows for each
      // thread.
      constexpr int64_t kBlocks = 6 * 132;
      const int64_t tiles = div_up(a.N, kColumnThreads * N);
      const int64_t slices =
          std::clamp<int64_t>(kBlocks / tiles, 1, div_up(a.T, int64_t(kRowThreads) * 8));
      const Scratch<float> partials(slices * a.N, stream);
      MT_LAUNCH_DEPENDENT((column_sums<N, T>), dim3(unsigned(tiles), unsigned(slices)),
                          dim3(kColumnThreads, kRowThreads), 0, stream, data<T>(a.x_TN), a.T, a.N,
                          partials.get());
      add_partials(partials.get(), slices, a.N, a.N, data<float>(a.out_N), stream);
    });
  });
}

}  // namespace mtrain::kernels::cuda
