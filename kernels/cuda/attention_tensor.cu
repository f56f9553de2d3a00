// Flash attention's forward on tensor cores, as in FlashAttention-2 (Dao 2023): a warp has 16
// queries, whose scores and results stay in its registers. Keys and values are loaded into shared
// memory, one tile ahead.
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/attention_mma.h"
#include "kernels/cuda/device/float8_store.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 256, kQueries = kThreads / kWarp * 16, kKeys = 64, kStages = 2;

template <int DIM>
struct Shared {
  static constexpr int kQueryBytes = kQueries * DIM * 2, kKeyBytes = kKeys * DIM * 2;
  static constexpr size_t kBytes = kQueryBytes + size_t(2 * kStages) * kKeyBytes;
  unsigned char* at;
  __device__ __forceinline__ HalfTile<DIM> q() const { return {at}; }
  __device__ __forceinline__ HalfTile<DIM> k(int stage) const {
    return {at + kQueryBytes + 2 * stage * kKeyBytes};
  }
  __device__ __forceinline__ HalfTile<DIM> v(int stage) const {
    return {at + kQueryBytes + (2 * stage + 1) * kKeyBytes};
  }
};

// The running maximum and sum of a lane's two rows of queries.
struct Softmax {
  float top[2], sum[2];  // base 2; the sum is of the lane's own columns
};

// Turns scores into probabilities; returns the factors for the earlier results in `decay`.
template <bool CAPPED, int BLOCKS>
__device__ __forceinline__ void soften(float (&s)[BLOCKS][4], Softmax& state, float (&decay)[2],
                                       const Range (&seen)[2], int key0, bool whole, float scale,
                                       const ScoreCap& cap) {
  if constexpr (CAPPED) {
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = cap.capped(s[n][i] * scale);
    scale = 1;
  }
  const int column = int(threadIdx.x) % 4 * 2;
  if (!whole) {
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + n * 8 + column + i % 2;
        if (key < seen[i / 2].begin || key >= seen[i / 2].end) s[n][i] = -INFINITY;
      }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    most = fmaxf(state.top[half], most * scale);  // scale > 0
    const float shift = most == -INFINITY ? 0.0f : most;
    decay[half] = fast_exp2(state.top[half] - shift);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[n][i] = fast_exp2(s[n][i] * scale - shift);
        sum += s[n][i];
      }
    state.sum[half] = state.sum[half] * decay[half] + sum;
    state.top[half] = most;
  }
}

template <class T>
struct Output {
  PairHeads<T> out;
  float* lse;
  int64_t lse_stride;
  float* amax;
  Float8Out eight;  // out in 8 bits, if it has a scale
};

template <int DIM, bool CAPPED, class T>
__global__ void __launch_bounds__(kThreads, 1)
    forward(Heads<const T> q_heads, Heads<const T> k_heads, Heads<const T> v_heads, Output<T> to,
            VisibleKeys sight, int A, int group, float scale, ScoreCap cap) {
  const int tiles = (sight.Sq + kQueries - 1) / kQueries, D = q_heads.D;
  const int head = int(blockIdx.x) % A, b = int(blockIdx.x) / A % q_heads.B;
  // Under a causal mask the last queries attend to the most keys: they are first.
  const int q0 = (tiles - 1 - int(blockIdx.x) / A / q_heads.B) * kQueries;
  const Shared<DIM> shared{dynamic_shared<unsigned char>()};
  const HeadRows<const T> keys = k_heads.of(b, head / group), values = v_heads.of(b, head / group);
  const int warp = int(threadIdx.x) / kWarp, row0 = q0 + warp * 16, last = sight.Sq - 1;
  const int row = row0 + int(threadIdx.x) % kWarp / 4;
  // Rows beyond the last one are computed as copies of it, and are not written.
  const Range seen[2] = {sight(min(row, last)), sight(min(row + 8, last))};
  const Range first_of_warp = sight(min(row0, last)), last_of_warp = sight(min(row0 + 15, last));
  const int begin = sight(q0).begin, end = sight(min(q0 + kQueries - 1, last)).end;

  const auto fetch = [&](int key0, int stage) {
    copy_rows<kKeys, kThreads>(shared.k(stage), keys, key0, sight.Skv, D);
    copy_rows<kKeys, kThreads>(shared.v(stage), values, key0, sight.Skv, D);
    copy_async_commit();
  };
  copy_rows<kQueries, kThreads>(shared.q(), q_heads.of(b, head), q0, sight.Sq, D);
  copy_async_commit();
  if (begin < end) fetch(begin, 0);
  Softmax state{{-INFINITY, -INFINITY}, {0, 0}};
  float out[DIM / 8][4] = {};
  int stage = 0;
  for (int key0 = begin; key0 < end; key0 += kKeys, stage ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // all threads see this tile, and none still reads the previous one
    if (key0 + kKeys < end) fetch(key0 + kKeys, stage ^ 1);
    if (key0 >= last_of_warp.end || key0 + kKeys <= first_of_warp.begin) continue;
    float s[kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k) {
      uint32_t a[4];
      load_a(a, shared.q(), warp * 16, k);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b2[4];
        load_b_transposed(b2, shared.k(stage), n * 16, k);
        mma_of<T>(s[2 * n], a, b2[0], b2[1]);
        mma_of<T>(s[2 * n + 1], a, b2[2], b2[3]);
      }
    }
    float decay[2];
    const bool whole = key0 >= last_of_warp.begin && key0 + kKeys <= first_of_warp.end;
    soften<CAPPED>(s, state, decay, seen, key0, whole, scale, cap);
#pragma unroll
    for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= decay[i / 2];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[4];
      as_operand<T>(a, s[2 * k], s[2 * k + 1]);
      multiply_rows<T, DIM>(out, a, shared.v(stage), k * 16);
    }
  }
  copy_async_wait<0>();  // waits for the queries if there was no key

  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    factor[half] = sum == 0 ? 0.0f : 1.0f / sum;
    const int at = row + 8 * half;
    if (threadIdx.x % 4 == 0 && at < sight.Sq)
      to.lse[(int64_t(b) * A + head) * to.lse_stride + at] =
          sum == 0 ? -INFINITY : state.top[half] * kAttentionLn2 + logf(sum);
  }
  put_sums<DIM>(to.out.of(b, head), out, row0, sight.Sq, D, factor[0], factor[1], false);
  raise_amax_of_sums<DIM, T>(to.amax, out, row0, sight.Sq, D, factor[0], factor[1]);
  if (!to.eight.scale) return;
  const float of_8_bits = *to.eight.scale;
  for_sums<DIM>(out, row0, sight.Sq, D, factor[0], factor[1],
                [&](int query, int d, float x, float y) {
                  const float pair[2] = {x, y};
                  store_float8<T>(to.eight, to.out.element(b, head, query) + d, pair, of_8_bits);
                });
}

template <int DIM, bool CAPPED, class T>
void start(const AttentionForward& f, CUstream_st* stream) {
  const AttentionShape& s = f.shape;
  MT_LAUNCH(
      (forward<DIM, CAPPED, T>), unsigned(div_up(s.Sq, kQueries) * s.A * s.B), kThreads,
      Shared<DIM>::kBytes, stream, heads_of<T>(f.q, s), heads_of<T>(f.k, s), heads_of<T>(f.v, s),
      (Output<T>{pairs_of<T>(f.out, s), data<float>(f.lse), s.lse_stride ? s.lse_stride : s.Sq,
                 data<float>(f.amax), float8_out(f.quantized, f.scale)}),
      VisibleKeys(s), int(s.A), int(s.A / s.G), s.scale * kAttentionLog2E, ScoreCap(s.cap));
}

bool has_aligned_chunks(const HeadView& v) {
  return aligned({v.data.data}) && v.token_stride % 8 == 0;
}

}  // namespace

bool tensor_cores_can(const AttentionForward& f) {
  const HeadView out{f.out.data, f.out.token_stride};
  return is_half(f.q.data.dtype) && f.shape.D % 8 == 0 && f.shape.D <= 128 && f.shape.scale > 0 &&
         f.shape.Skv > 0 && has_aligned_chunks(f.q) && has_aligned_chunks(f.k) &&
         has_aligned_chunks(f.v) && has_aligned_chunks(out);
}

void attention_on_tensor_cores(const AttentionForward& f, CUstream_st* stream) {
  const auto start_as = [&]<class T>() {
    const bool capped = f.shape.cap > 0;
    if (f.shape.D <= 64)
      capped ? start<64, true, T>(f, stream) : start<64, false, T>(f, stream);
    else
      capped ? start<128, true, T>(f, stream) : start<128, false, T>(f, stream);
  };
  if (f.q.data.dtype == DType::f16)
    start_as.template operator()<f16>();
  else
    start_as.template operator()<bf16>();
}

}  // namespace mtrain::kernels::cuda
