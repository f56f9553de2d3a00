// Dropout and normal numbers: the stream of base/rng.h, element i from word i % 4 of block i / 4.
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/philox.h"
#include "kernels/elementwise.h"

namespace mtrain::kernels::cuda {
namespace {

// A thread has the elements of BLOCKS blocks of the generator; the buffer may begin and end within
// a block.
template <int BLOCKS, bool VECTORS, class T>
__global__ void dropout(const T* x, T* y, int64_t count, uint64_t key, const int64_t* key_in_memory,
                        int64_t first_index, uint32_t threshold, float scale) {
  if (key_in_memory) key = uint64_t(*key_in_memory);
  constexpr int N = 4 * BLOCKS;
  const int64_t skip = first_index % N;  // elements of the first group before the buffer
  const int64_t groups = (skip + count + N - 1) / N;
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t g = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; g < groups; g += threads) {
    const int64_t at = g * N - skip;
    float v[N];
    const bool whole = at >= 0 && at + N <= count;
    if (VECTORS && whole) {
      load<N>(x + at, v);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j)
        v[j] = at + j >= 0 && at + j < count ? load_one(x + at + j) : 0.0f;
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const Words words = philox(key, uint64_t(first_index + at) / 4 + uint64_t(b));
#pragma unroll
      for (int j = 0; j < 4; ++j)
        v[4 * b + j] = words.x[j] >= threshold ? v[4 * b + j] * scale : 0.0f;
    }
    if (VECTORS && whole) {
      store<N>(y + at, v);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (at + j >= 0 && at + j < count) store_one(y + at + j, v[j]);
    }
  }
}

// Box-Muller in fp64, as in base/rng.cpp: the numbers equal the CPU's except for the last bit.
__global__ void fill_normal(float* y, int64_t count, uint64_t key, int64_t first_index, float std) {
  constexpr double kTwoPi = 6.283185307179586;
  const int64_t skip = first_index % 4, groups = (skip + count + 3) / 4;
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t g = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; g < groups; g += threads) {
    const int64_t at = g * 4 - skip;
    const Words words = philox(key, uint64_t(first_index + at) / 4);
    for (int pair = 0; pair < 2; ++pair) {
      const double u = (double(words.x[2 * pair]) + 1.0) * 0x1p-32;
      const double angle = kTwoPi * (double(words.x[2 * pair + 1]) * 0x1p-32);
      const double r = sqrt(-2.0 * log(u));
      const int64_t i = at + 2 * pair;
      if (i >= 0 && i < count) y[i] = std * float(r * cos(angle));
      if (i + 1 >= 0 && i + 1 < count) y[i + 1] = std * float(r * sin(angle));
    }
  }
}

}  // namespace

void run(const Dropout& a, CUstream_st* stream) {
  const int64_t n = a.y.count;
  if (n <= 0) return;
  const uint32_t threshold = uint32_t(double(a.p) * 4294967296.0);
  const float scale = 1.0f / (1.0f - a.p);
  with_float(a.x.dtype, [&]<class T>() {
    constexpr int BLOCKS = kVector<T> / 4, N = kVector<T>;
    const unsigned blocks = blocks_for(n / N + 2, kFlatThreads);
    if (aligned({a.x.data, a.y.data}) && a.first_index % N == 0)
      MT_LAUNCH((dropout<BLOCKS, true, T>), blocks, kFlatThreads, 0, stream, data<T>(a.x),
                data<T>(a.y), n, a.key, data<int64_t>(a.key_in_memory), a.first_index, threshold,
                scale);
    else
      MT_LAUNCH((dropout<BLOCKS, false, T>), blocks, kFlatThreads, 0, stream, data<T>(a.x),
                data<T>(a.y), n, a.key, data<int64_t>(a.key_in_memory), a.first_index, threshold,
                scale);
  });
}

void run(const FillNormal& a, CUstream_st* stream) {
  if (a.y.count <= 0) return;
  MT_LAUNCH(fill_normal, blocks_for(a.y.count / 4 + 2, kFlatThreads), kFlatThreads, 0, stream,
            data<float>(a.y), a.y.count, a.key, a.first_index, a.std);
}

}  // namespace mtrain::kernels::cuda
