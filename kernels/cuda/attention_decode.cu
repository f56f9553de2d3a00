#include "kernels/attention_decode.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kWarps = 8;

struct Operands {
  const int32_t *start_T, *end_T;
  int64_t q_stride, k_stride, v_stride, out_stride;
  int64_t heads;  // T * A
  int A, group, D, Dv;
  int window;  // the number of all keys if there is no window
  float scale;
  float cap;
};

// A block has one query head. Each of its warps processes every kWarps-th key with a separate
// softmax; a lane holds every 32nd element of the head. At the end the warps' sums are merged in a
// fixed order. N is the larger of D and Dv by 32,
// rounded up.
template <int N, bool CAPPED, class T>
__global__ void decode(const T* q, const T* k, const T* v, T* out, Operands o) {
  __shared__ float warp_top[kWarps], warp_sum_of[kWarps];
  float* const warp_out = dynamic_shared<float>();  // (kWarps, Dv)
  const int lane = int(threadIdx.x), warp = int(threadIdx.y);
  for (int64_t head = blockIdx.x; head < o.heads; head += gridDim.x) {
    const int64_t t = head / o.A;
    const int a = int(head % o.A), g = a / o.group;
    float query[N], sum_v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int d = lane + i * kWarp;
      query[i] = d < o.D ? load_one(q + t * o.q_stride + int64_t(a) * o.D + d) * o.scale : 0.0f;
      sum_v[i] = 0;
    }
    float top = -INFINITY, sum = 0;
    const int end = o.end_T[t], begin = max(o.start_T[t], end - o.window);
    for (int row = begin + warp; row < end; row += kWarps) {
      float part = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int d = lane + i * kWarp;
        if (d < o.D) part += query[i] * load_one(k + row * o.k_stride + int64_t(g) * o.D + d);
      }
      float score = warp_sum(part);
      if constexpr (CAPPED) score = o.cap * tanhf(score / o.cap);
      const float higher = score > top ? score : top;
      const float decay = expf(top - higher), p = expf(score - higher);
      sum = sum * decay + p, top = higher;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int d = lane + i * kWarp;
        if (d < o.Dv)
          sum_v[i] = sum_v[i] * decay + p * load_one(v + row * o.v_stride + int64_t(g) * o.Dv + d);
      }
    }
    if (lane == 0) warp_top[warp] = top, warp_sum_of[warp] = sum;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (const int d = lane + i * kWarp; d < o.Dv) warp_out[warp * o.Dv + d] = sum_v[i];
    __syncthreads();
    float most = -INFINITY, whole = 0;
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, warp_top[w]);
    for (int w = 0; w < kWarps; ++w) whole += warp_sum_of[w] * expf(warp_top[w] - most);
    for (int d = warp * kWarp + lane; d < o.Dv; d += kWarps * kWarp) {
      float x = 0;
      for (int w = 0; w < kWarps; ++w) x += warp_out[w * o.Dv + d] * expf(warp_top[w] - most);
      store_one(out + t * o.out_stride + int64_t(a) * o.Dv + d, x / whole);
    }
    __syncthreads();  // shared memory may be written again
  }
}

}  // namespace

void run(const AttentionDecode& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  const Operands o{.start_T = data<int32_t>(a.start_T),
                   .end_T = data<int32_t>(a.end_T),
                   .q_stride = a.q.token_stride,
                   .k_stride = a.k.token_stride,
                   .v_stride = a.v.token_stride,
                   .out_stride = a.out.token_stride,
                   .heads = a.T * a.A,
                   .A = int(a.A),
                   .group = int(a.A / a.G),
                   .D = int(a.D),
                   .Dv = int(a.value_dim()),
                   .window = int(a.window > 0 ? a.window : a.rows),
                   .scale = a.scale,
                   .cap = a.cap};
  const auto launch_for = [&]<int N>(Lanes<N>) {
    with_float(a.q.data.dtype, [&]<class T>() {
      const auto start = [&](void (*kernel)(const T*, const T*, const T*, T*, Operands)) {
        MT_LAUNCH(kernel, blocks_for(o.heads, 1), dim3(kWarp, kWarps), kWarps * o.Dv * 4, stream,
                  data<T>(a.q.data), data<T>(a.k.data), data<T>(a.v.data), data<T>(a.out.data), o);
      };
      start(a.cap > 0 ? decode<N, true, T> : decode<N, false, T>);
    });
  };
  const int64_t widest = std::max(a.D, a.value_dim());
  if (widest <= 2 * kWarp)
    launch_for(Lanes<2>{});
  else if (widest <= 4 * kWarp)
    launch_for(Lanes<4>{});
  else
    launch_for(Lanes<kDecodeMaxHeadDim / kWarp>{});
}

}  // namespace mtrain::kernels::cuda
