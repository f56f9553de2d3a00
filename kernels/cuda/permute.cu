#include "kernels/permute.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// --- the rows of the choices --- Each expert has a block: the choices are few numbers, and all
// blocks read them from the L2 cache.
constexpr int kChoices = 1024, kWarps = kChoices / kWarp;  // at once

__global__ void __launch_bounds__(kChoices)
    count_choices(const int32_t* expert_TK, int32_t* count_E, int64_t choices, int begin,
                  int capacity) {
  __shared__ int slots[kWarps];
  int count = 0;
  for (int64_t i = threadIdx.x; i < choices; i += kChoices)
    count += expert_TK[i] == begin + int(blockIdx.x);
  count = row_sum(count, kWarps, slots);
  if (threadIdx.x == 0) count_E[blockIdx.x] = capacity > 0 ? min(count, capacity) : count;
}

// The last block has no expert: it handles the choices without an expert and, without a capacity,
// the rows without a choice.
__global__ void __launch_bounds__(kChoices)
    place_choices(const int32_t* expert_TK, const int32_t* count_E, int32_t* row_TK,
                  int32_t* choice_R, int32_t* first_E1, int64_t choices, int experts, int begin,
                  int capacity) {
  __shared__ int slots[kWarps];
  const int mine = int(blockIdx.x), thread = int(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  int before = 0;  // rows of the previous experts
  for (int e = thread; e < mine; e += kChoices) before += count_E[e];
  int next = row_sum(before, kWarps, slots);
  if (capacity > 0) next = mine * capacity;
  const int end = next + capacity;  // if there is a capacity
  if (first_E1 && thread == 0) first_E1[mine] = next;
  if (mine == experts) {
    for (int64_t i = thread; i < choices; i += kChoices) {
      if (expert_TK[i] < begin || expert_TK[i] >= begin + experts) row_TK[i] = -1;
      if (capacity == 0 && i >= next) choice_R[i] = -1;
    }
    return;
  }
  for (int64_t base = 0; base < choices; base += kChoices) {
    const int64_t i = base + thread;
    const bool match = i < choices && expert_TK[i] == begin + mine;
    const unsigned matches = __ballot_sync(kAllLanes, match);
    if (lane == 0) slots[warp] = __popc(matches);
    __syncthreads();
    int ahead = 0, all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) ahead += slots[w];
      all += slots[w];
    }
    if (match) {
      const int row = next + ahead + __popc(matches & ((1u << lane) - 1));
      const bool kept = capacity == 0 || row < end;
      row_TK[i] = kept ? row : -1;
      if (kept) choice_R[row] = int32_t(i);
    }
    next += all;
    __syncthreads();  // slots may be written again
  }
  if (capacity > 0)
    for (int row = next + thread; row < end; row += kChoices) choice_R[row] = -1;
}

// --- rows by choice and back: a block has a part of one row ---
__device__ __forceinline__ float weight_of(const float* weight_TK, int64_t choice) {
  return weight_TK ? weight_TK[choice] : 1.0f;
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    permute(const T* x_TH, const int32_t* choice_R, const float* weight_TK, T* out_RH, int64_t K,
            int64_t R, int64_t H, unsigned parts) {
  for (int64_t task = blockIdx.x; task < R * parts; task += gridDim.x) {
    const int64_t r = task / parts, i = (task % parts * kThreads + threadIdx.x) * N;
    if (i >= H) continue;
    const int64_t choice = choice_R[r];
    float v[N] = {};
    if (choice >= 0) {
      const float w = weight_of(weight_TK, choice);
      load<N>(x_TH + choice / K * H + i, v);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] *= w;
    }
    store<N>(out_RH + r * H + i, v);
  }
}

constexpr int kAhead = 4;  // rows in flight
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    unpermute(const T* x_RH, const int32_t* row_TK, const float* weight_TK, T* out_TH,
              int64_t tokens, int64_t K, int64_t R, int64_t H, unsigned parts) {
  for (int64_t task = blockIdx.x; task < tokens * parts; task += gridDim.x) {
    const int64_t t = task / parts, i = (task % parts * kThreads + threadIdx.x) * N;
    if (i >= H) continue;
    float sum[N] = {};
    for (int64_t k = 0; k < K; k += kAhead) {
      float v[kAhead][N] = {}, w[kAhead] = {};  // 0 for dropped choices
      int64_t row[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) row[u] = k + u < K ? row_TK[t * K + k + u] : -1;
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (row[u] >= 0 && row[u] < R) {
          w[u] = weight_of(weight_TK, t * K + k + u);
          load<N>(x_RH + row[u] * H + i, v[u]);
        }
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += w[u] * v[u][j];
    }
    store<N>(out_TH + t * H + i, sum);
  }
}

// Each choice has a warp.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    weight_grad(const T* dout_TH, const T* x_RH, const int32_t* row_TK, float* dweight_TK,
                int64_t choices, int64_t K, int64_t R, int64_t H) {
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t warps = int64_t(gridDim.x) * (kThreads / kWarp);
  for (int64_t choice = int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
       choice < choices; choice += warps) {
    const int64_t row = row_TK[choice];
    float sum = 0;
    if (row >= 0 && row < R) {
      const T* const x = x_RH + row * H;
      const T* const dout = dout_TH + choice / K * H;
      for (int64_t i = lane * N; i < H; i += kAhead * kWarp * N) {
        float v[kAhead][N] = {}, d[kAhead][N] = {};
#pragma unroll
        for (int u = 0; u < kAhead; ++u)
          if (const int64_t at = i + u * kWarp * N; at < H) {
            load<N>(x + at, v[u]);
            load<N>(dout + at, d[u]);
          }
#pragma unroll
        for (int u = 0; u < kAhead; ++u)
#pragma unroll
          for (int j = 0; j < N; ++j) sum += v[u][j] * d[u][j];
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) dweight_TK[choice] = sum;
  }
}

}  // namespace

void run(const ExpertRows& a, CUstream_st* stream) {
  const int64_t choices = a.T * a.K;
  const auto experts = unsigned(a.E);
  if (experts > 0)
    MT_LAUNCH(count_choices, experts, kChoices, 0, stream, data<int32_t>(a.expert_TK),
              data<int32_t>(a.count_E), choices, int(a.begin), int(a.capacity));
  MT_LAUNCH(place_choices, experts + 1, kChoices, 0, stream, data<int32_t>(a.expert_TK),
            data<int32_t>(a.count_E), data<int32_t>(a.row_TK), data<int32_t>(a.choice_R),
            data<int32_t>(a.first_E1), choices, int(experts), int(a.begin), int(a.capacity));
}

void run(const Permute& a, CUstream_st* stream) {
  if (a.R <= 0 || a.H <= 0) return;
  with_float(a.x_TH.dtype, [&]<class T>() {
    const bool vectors = aligned({a.x_TH.data, a.out_RH.data}) && a.H % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      const unsigned parts = unsigned(div_up(a.H, kThreads * N));
      MT_LAUNCH((permute<N, T>), blocks_for(a.R * parts, 1), kThreads, 0, stream, data<T>(a.x_TH),
                data<int32_t>(a.choice_R), data<float>(a.weight_TK), data<T>(a.out_RH), a.K, a.R,
                a.H, parts);
    });
  });
}

void run(const Unpermute& a, CUstream_st* stream) {
  if (a.T <= 0 || a.H <= 0) return;
  with_float(a.x_RH.dtype, [&]<class T>() {
    const bool vectors = aligned({a.x_RH.data, a.out_TH.data}) && a.H % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      const unsigned parts = unsigned(div_up(a.H, kThreads * N));
      MT_LAUNCH((unpermute<N, T>), blocks_for(a.T * parts, 1), kThreads, 0, stream, data<T>(a.x_RH),
                data<int32_t>(a.row_TK), data<float>(a.weight_TK), data<T>(a.out_TH), a.T, a.K, a.R,
                a.H, parts);
    });
  });
}

void run(const UnpermuteWeightGrad& a, CUstream_st* stream) {
  const int64_t choices = a.T * a.K;
  if (choices <= 0) return;
  with_float(a.x_RH.dtype, [&]<class T>() {
    const bool vectors = aligned({a.x_RH.data, a.dout_TH.data}) && a.H % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      MT_LAUNCH((weight_grad<N, T>), blocks_for(choices, kThreads / kWarp), kThreads, 0, stream,
                data<T>(a.dout_TH), data<T>(a.x_RH), data<int32_t>(a.row_TK),
                data<float>(a.dweight_TK), choices, a.K, a.R, a.H);
    });
  });
}

}  // namespace mtrain::kernels::cuda
