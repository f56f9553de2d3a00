#include "kernels/rope.h"

#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

// A row of threads has the vectors of all heads of a token.
template <int N, class T>
__global__ void rope(T* x, const float* cos_PR, const float* sin_PR, const int32_t* position_T,
                     int64_t tokens, int heads, int R, int64_t token_stride, float sign) {
  const int vectors = R / N, work = heads * vectors;
  const int64_t step = int64_t(gridDim.x) * blockDim.y;
  for (int64_t t = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; t < tokens; t += step) {
    const int64_t angles = int64_t(position_T[t]) * R;
    for (int j = int(threadIdx.x); j < work; j += int(blockDim.x)) {
      const int head = j / vectors, i = j % vectors * N;
      T* const first = x + t * token_stride + int64_t(head) * 2 * R + i;
      float u[N], v[N], c[N], s[N];
      load<N>(first, u);
      load<N>(first + R, v);
      load<N>(cos_PR + angles + i, c);
      load<N>(sin_PR + angles + i, s);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float a = u[k], b = v[k], sine = sign * s[k];
        u[k] = a * c[k] - b * sine;
        v[k] = b * c[k] + a * sine;
      }
      store<N>(first, u);
      store<N>(first + R, v);
    }
  }
}

}  // namespace

void run(const Rope& a, CUstream_st* stream) {
  const int R = int(a.D / 2), heads = int(a.heads);
  if (a.T <= 0 || heads <= 0) return;
  with_float(a.x.dtype, [&]<class T>() {
    const bool vectors = aligned({a.x.data, a.cos_PR.data, a.sin_PR.data}) && R % kVector<T> == 0 &&
                         a.token_stride % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      unsigned x = 1;
      while (x < unsigned(heads * (R / N)) && x < unsigned(kFlatThreads)) x *= 2;
      const unsigned y = unsigned(kFlatThreads) / x;
      MT_LAUNCH((rope<N, T>), blocks_for(a.T, y), dim3(x, y), 0, stream, data<T>(a.x),
                data<float>(a.cos_PR), data<float>(a.sin_PR), data<int32_t>(a.position_T), a.T,
                heads, R, a.token_stride, a.backward ? -1.0f : 1.0f);
    });
  });
}

}  // namespace mtrain::kernels::cuda
