#include "kernels/weighted_swiglu.h"

#include "kernels/cuda/device/gate.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// A block has kThreads threads: one row at a time, or a row for each of its warps.
dim3 threads_of_row(int64_t vectors) {
  constexpr int64_t kMaxOfWarp = 4 * kWarp;  // then a quarter of a block would be idle, or more
  return vectors <= kMaxOfWarp ? dim3(kWarp, kWarps) : dim3(kThreads);
}
// Calls f(row) for the rows of this thread.
template <class F>
__device__ __forceinline__ void for_own_rows(int64_t rows, const F& f) {
  const int64_t at_once = int64_t(gridDim.x) * blockDim.y;
  for (int64_t r = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; r < rows; r += at_once) f(r);
}

template <GateFunction GATE, int N, class T>
__global__ void MT_BOUNDS(kThreads)
    weighted_forward(const T* gate_up, const float* weight, T* y, int64_t rows, int64_t F) {
  wait_for_previous_kernel();
  for_own_rows(rows, [&](int64_t r) {
    const float w = weight[r];
    for (int64_t i = int64_t(threadIdx.x) * N; i < F; i += int64_t(blockDim.x) * N) {
      float g[N], u[N];
      load<N>(gate_up + r * 2 * F + i, g);
      load<N>(gate_up + r * 2 * F + F + i, u);
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] = gate_value<GATE, T>(g[j]) * u[j] * w;
      store<N>(y + r * F + i, g);
    }
  });
}

template <GateFunction GATE, int N, class T>
__global__ void __launch_bounds__(kThreads)
    weighted_backward(const T* gate_up, const float* weight, const T* dy, T* dgate_up,
                      float* dweight, T* y, int64_t rows, int64_t F) {
  wait_for_previous_kernel();
  __shared__ float slots[kWarp];
  for_own_rows(rows, [&](int64_t r) {
    const float w = weight[r];
    float sum = 0;
    // Vectors, and gelu's gate, would take too many registers if they were unrolled.
    constexpr int kUnroll = N == 1 && GATE == GateFunction::silu ? 4 : 1;
#pragma unroll(kUnroll)
    for (int64_t i = int64_t(threadIdx.x) * N; i < F; i += int64_t(blockDim.x) * N) {
      const int64_t at = r * 2 * F + i;
      float g[N], u[N], d[N], recomputed[N];
      load<N>(gate_up + at, g);
      load<N>(gate_up + at + F, u);
      load<N>(dy + r * F + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float value;
        const float slope = gate_slope<GATE, T>(g[j], value), plain = value * u[j];
        sum += d[j] * plain;
        recomputed[j] = plain * w;
        g[j] = d[j] * w * u[j] * slope;
        u[j] = d[j] * w * value;
      }
      store<N>(dgate_up + at, g);
      store<N>(dgate_up + at + F, u);
      if (y) store<N>(y + r * F + i, recomputed);
    }
    sum = row_sum(sum, int(blockDim.x) / kWarp, slots);
    if (threadIdx.x == 0) dweight[r] = sum;
  });
}

}  // namespace

void run(const WeightedSwigluForward& a, CUstream_st* stream) {
  if (a.R <= 0 || a.F <= 0) return;
  with_float(a.y_RF.dtype, [&]<class T>() {
    const bool vectors = aligned({a.gate_up_R2F.data, a.y_RF.data}) && a.F % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      const dim3 threads = threads_of_row(div_up(a.F, N));
      with_gate(a.gate, [&]<GateFunction GATE>() {
        MT_LAUNCH_DEPENDENT((weighted_forward<GATE, N, T>), blocks_for(a.R, threads.y), threads, 0,
                            stream, data<T>(a.gate_up_R2F), data<float>(a.weight_R),
                            data<T>(a.y_RF), a.R, a.F);
      });
    });
  });
}

void run(const WeightedSwigluBackward& a, CUstream_st* stream) {
  if (a.R <= 0) return;
  with_float(a.dgate_up_R2F.dtype, [&]<class T>() {
    const bool vectors =
        aligned({a.gate_up_R2F.data, a.dy_RF.data, a.dgate_up_R2F.data, a.y_RF.data}) &&
        a.F % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      const dim3 threads = threads_of_row(div_up(a.F, N));
      with_gate(a.gate, [&]<GateFunction GATE>() {
        MT_LAUNCH_DEPENDENT((weighted_backward<GATE, N, T>), blocks_for(a.R, threads.y), threads, 0,
                            stream, data<T>(a.gate_up_R2F), data<float>(a.weight_R),
                            data<T>(a.dy_RF), data<T>(a.dgate_up_R2F), data<float>(a.dweight_R),
                            data<T>(a.y_RF), a.R, a.F);
      });
    });
  });
}

}  // namespace mtrain::kernels::cuda
