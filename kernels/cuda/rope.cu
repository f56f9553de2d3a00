#include "kernels/rope.h"

#include "kernels/cuda/device/amax.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

// The x dimension of the threads covers a head's vectors, y a token's heads, z the tokens.
template <bool AMAX, int N, class T>
__global__ void __launch_bounds__(kFlatThreads, 4)
    rope(T* x, const float* cos_PR, const float* sin_PR, const int32_t* position_T, int64_t tokens,
         int heads, int D, int R, int64_t token_stride, float sign, float* amax) {
  wait_for_previous_kernel();
  float most = 0;
  const int64_t step = int64_t(gridDim.x) * blockDim.z;
  for (int64_t t = int64_t(blockIdx.x) * blockDim.z + threadIdx.z; t < tokens; t += step)
    for (int head = int(threadIdx.y); head < heads; head += int(blockDim.y)) {
      T* const of_head = x + t * token_stride + int64_t(head) * D;
      for (int i = int(threadIdx.x) * N; i < R; i += int(blockDim.x) * N) {
        T* const first = of_head + i;
        const int32_t position = position_T[t];  // loaded together with x
        float u[N], v[N], c[N], s[N];
        load<N>(first, u);
        load<N>(first + R, v);
        const int64_t angles = int64_t(position) * R + i;
        load<N>(cos_PR + angles, c);
        load<N>(sin_PR + angles, s);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float a = u[k], b = v[k], sine = sign * s[k];
          u[k] = a * c[k] - b * sine;
          v[k] = b * c[k] + a * sine;
        }
        store<N>(first, u);
        store<N>(first + R, v);
        if constexpr (AMAX) most = larger_stored<T>(larger_stored<T>(most, u), v);
      }
      if constexpr (AMAX)
        for (int i = 2 * R + int(threadIdx.x) * N; i < D; i += int(blockDim.x) * N) {
          float u[N];
          load<N>(of_head + i, u);
          most = larger_stored<T>(most, u);
        }
    }
  if constexpr (AMAX) raise_amax_alone(amax, most);
}

// A thread has a pair of neighbours of a head.
template <class T>
__global__ void rope_pairs(T* x, const float* cos_PR, const float* sin_PR,
                           const int32_t* position_T, int64_t pairs, int heads, int64_t D, int R,
                           int64_t token_stride, float sign) {
  wait_for_previous_kernel();
  for_vectors<1>(pairs, [&](auto, int64_t i) {
    const int64_t t = i / (int64_t(heads) * R), head = i / R % heads, lane = i % R;
    T* const pair = x + t * token_stride + head * D + 2 * lane;
    const int64_t angle = int64_t(position_T[t]) * R + lane;
    const float c = cos_PR[angle], s = sign * sin_PR[angle];
    const float u = load_one(pair), v = load_one(pair + 1);
    store_one(pair, u * c - v * s);
    store_one(pair + 1, v * c + u * s);
  });
}

void run_interleaved(const Rope& a, CUstream_st* stream) {
  const int64_t pairs = a.T * a.heads * a.R;
  with_float(a.x.dtype, [&]<class T>() {
    MT_LAUNCH_DEPENDENT((rope_pairs<T>), flat_blocks(pairs, 1), kFlatThreads, 0, stream,
                        data<T>(a.x) + a.first, data<float>(a.cos_PR), data<float>(a.sin_PR),
                        data<int32_t>(a.position_T), pairs, int(a.heads), a.D, int(a.R),
                        a.token_stride, a.backward ? -1.0f : 1.0f);
  });
}

}  // namespace

void run(const Rope& a, CUstream_st* stream) {
  const int D = int(a.D), R = int(a.R), heads = int(a.heads);
  if (a.T <= 0 || heads <= 0 || R <= 0) return;
  if (a.interleaved) return run_interleaved(a, stream);
  with_float(a.x.dtype, [&]<class T>() {
    const bool vectors = aligned({a.x.data, a.cos_PR.data, a.sin_PR.data}) && R % kVector<T> == 0 &&
                         D % kVector<T> == 0 && a.token_stride % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      const unsigned most = unsigned(kFlatThreads), x = std::min(most, unsigned(R / N));
      const unsigned y = std::min(most / x, unsigned(heads)), z = std::min(most / (x * y), 64u);
      with_amax(a.amax, [&]<bool AMAX>() {
        MT_LAUNCH_DEPENDENT((rope<AMAX, N, T>), blocks_for(a.T, z), dim3(x, y, z), 0, stream,
                            data<T>(a.x), data<float>(a.cos_PR), data<float>(a.sin_PR),
                            data<int32_t>(a.position_T), a.T, heads, D, R, a.token_stride,
                            a.backward ? -1.0f : 1.0f, data<float>(a.amax));
      });
    });
  });
}

}  // namespace mtrain::kernels::cuda
