#include "kernels/latent_heads.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kHeadWarps = 8;

// The widths of a token's rows, in elements.
struct HeadWidths {
  int64_t A, N, R, V;
  int64_t of_q;  // of the queries: A (N + R), or 0 without them
  __host__ __device__ int64_t row() const { return of_q + A * (N + R) + A * V; }
  int64_t of_kv() const { return A * (N + V); }
};

// A thread's element of the rows of queries, keys and values.
template <class T>
__global__ void join_heads(const T* q, const T* kv, const T* shared, T* qkv, int64_t T_,
                           HeadWidths w) {
  wait_for_previous_kernel();
  const int64_t D = w.N + w.R, of_k = w.A * D, row = w.row();
  for_vectors<1>(T_ * row, [&](auto, int64_t i) {
    const int64_t t = i / row, key = i % row - w.of_q, value = key - of_k;
    if (key < 0) {
      qkv[i] = q[t * w.of_q + key + w.of_q];
    } else if (value < 0) {
      const int64_t h = key / D, d = key % D;
      qkv[i] = d < w.N ? kv[(t * w.A + h) * (w.N + w.V) + d] : shared[t * w.R + d - w.N];
    } else {
      qkv[i] = kv[(t * w.A + value / w.V) * (w.N + w.V) + w.N + value % w.V];
    }
  });
}

// A thread's element of dq, dkv or dshared, which is the sum over the heads.
template <class T>
__global__ void divide_heads(const T* dqkv, T* dq, T* dkv, T* dshared, int64_t T_, HeadWidths w) {
  wait_for_previous_kernel();
  const int64_t D = w.N + w.R, of_k = w.A * D, of_kv = w.A * (w.N + w.V), row = w.row(),
                all = w.of_q + of_kv + w.R;
  for_vectors<1>(T_ * all, [&](auto, int64_t i) {
    const int64_t t = i / all, k = i % all - w.of_q, r = k - of_kv;
    const T* const from = dqkv + t * row;
    if (k < 0) {
      dq[t * w.of_q + k + w.of_q] = from[k + w.of_q];
    } else if (r < 0) {
      const int64_t h = k / (w.N + w.V), d = k % (w.N + w.V);
      dkv[t * of_kv + k] =
          d < w.N ? from[w.of_q + h * D + d] : from[w.of_q + of_k + h * w.V + d - w.N];
    } else {
      float sum = 0;
      for (int64_t h = 0; h < w.A; ++h) sum += load_one(from + w.of_q + h * D + w.N + r);
      store_one(dshared + t * w.R + r, sum);
    }
  });
}

// A block has a head of a token. Its threads have the columns of the latent.
template <class T>
__global__ void absorb_keys(const T* q, const T* weight, T* out, int64_t A, int64_t N, int64_t R,
                            int64_t V, int64_t C) {
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x, h = row % A;
  const T* const from = q + row * (N + R);
  const T* const keys = weight + h * (N + V) * C;
  T* const to = out + row * (C + R);
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    float sum = 0;
    for (int64_t n = 0; n < N; ++n) sum += load_one(from + n) * load_one(keys + n * C + c);
    store_one(to + c, sum);
  }
  for (int64_t r = threadIdx.x; r < R; r += blockDim.x) to[C + r] = from[N + r];
}

// A block has a head of a token. Each of its warps has every kHeadWarps-th element of the value.
template <class T>
__global__ void expand_values(const T* x, const T* weight, T* out, int64_t A, int64_t N, int64_t V,
                              int64_t C) {
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x, h = row % A;
  const int lane = int(threadIdx.x);
  for (int64_t v = threadIdx.y; v < V; v += kHeadWarps) {
    const T* const values = weight + (h * (N + V) + N + v) * C;
    float sum = 0;
    for (int64_t c = lane; c < C; c += kWarp)
      sum += load_one(x + row * C + c) * load_one(values + c);
    sum = warp_sum(sum);
    if (lane == 0) store_one(out + row * V + v, sum);
  }
}

}  // namespace

void run(const LatentHeadsForward& a, CUstream_st* stream) {
  const HeadWidths w{a.A, a.N, a.R, a.V, a.q_TN ? a.A * (a.N + a.R) : 0};
  if (a.T <= 0) return;
  with_float(a.qkv_TN.dtype, [&]<class T>() {
    MT_LAUNCH_DEPENDENT((join_heads<T>), flat_blocks(a.T * w.row(), 1), kFlatThreads, 0, stream,
                        data<T>(a.q_TN), data<T>(a.kv_TN), data<T>(a.shared_TR), data<T>(a.qkv_TN),
                        a.T, w);
  });
}

void run(const LatentHeadsBackward& a, CUstream_st* stream) {
  const HeadWidths w{a.A, a.N, a.R, a.V, a.A * (a.N + a.R)};
  if (a.T <= 0) return;
  with_float(a.dqkv_TN.dtype, [&]<class T>() {
    MT_LAUNCH_DEPENDENT((divide_heads<T>), flat_blocks(a.T * (w.of_q + w.of_kv() + a.R), 1),
                        kFlatThreads, 0, stream, data<T>(a.dqkv_TN), data<T>(a.dq_TN),
                        data<T>(a.dkv_TN), data<T>(a.dshared_TR), a.T, w);
  });
}

void run(const LatentQueries& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  with_float(a.q_TN.dtype, [&]<class T>() {
    MT_LAUNCH_DEPENDENT((absorb_keys<T>), unsigned(a.T * a.A), kFlatThreads, 0, stream,
                        data<T>(a.q_TN), data<T>(a.weight_NC), data<T>(a.out_TN), a.A, a.N, a.R,
                        a.V, a.C);
  });
}

void run(const LatentValues& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  with_float(a.x_TN.dtype, [&]<class T>() {
    MT_LAUNCH_DEPENDENT((expand_values<T>), unsigned(a.T * a.A), dim3(kWarp, kHeadWarps), 0, stream,
                        data<T>(a.x_TN), data<T>(a.weight_NC), data<T>(a.out_TN), a.A, a.N, a.V,
                        a.C);
  });
}

}  // namespace mtrain::kernels::cuda
