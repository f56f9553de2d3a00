// Flash attention's backward on tensor cores. A block keeps 64 keys and iterates over the queries
// that attend to them, or keeps 64 queries and iterates over their keys. A warp has 16 of the kept
// rows; their sums stay in its registers. This takes seven GEMMs instead of five, and no sum
// depends on the order of blocks.
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/attention_mma.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 128, kKept = kThreads / kWarp * 16, kStages = 2;
template <int DIM>
constexpr int kMoving = DIM <= 64 ? 64 : 32;  // rows of a tile that the block iterates over

template <class T>
struct Operands {
  Heads<const T> q, k, v, dout;
  const float *lse, *delta;
  int64_t lse_stride;
  VisibleKeys sight;
  int A, group;
  float scale;
  ScoreCap cap;
};

// The data of a query besides its row.
struct Query {
  float lse, delta;  // lse: base 2
  int begin, end;    // the keys it attends to
};
template <class T>
__device__ __forceinline__ Query query_at(const Operands<T>& a, int b, int head, int row) {
  if (row >= a.sight.Sq) return {0, 0, 0, 0};
  const Range seen = a.sight(row);
  const int64_t at = int64_t(b) * a.A + head;
  return {a.lse[at * a.lse_stride + row] * kAttentionLog2E, a.delta[at * a.sight.Sq + row],
          seen.begin, seen.end};
}

template <int DIM>
struct Shared {
  static constexpr int kKeptBytes = kKept * DIM * 2, kMovingBytes = kMoving<DIM> * DIM * 2;
  static constexpr int kQueriesAt = 2 * kKeptBytes + 2 * kStages * kMovingBytes;
  static constexpr size_t kBytes =
      size_t(kQueriesAt) + size_t(kStages) * kMoving<DIM> * sizeof(Query);
  unsigned char* at;
  // 0: the operand of the scores (k or q); 1: the operand of their gradients (v or dout).
  __device__ __forceinline__ HalfTile<DIM> kept(int which) const {
    return {at + which * kKeptBytes};
  }
  __device__ __forceinline__ HalfTile<DIM> moving(int stage, int which) const {
    return {at + 2 * kKeptBytes + (2 * stage + which) * kMovingBytes};
  }
  __device__ __forceinline__ Query* queries(int stage) const {
    return reinterpret_cast<Query*>(at + kQueriesAt) + stage * kMoving<DIM>;
  }
};

// Computes x (16, R) = the rows of a, starting at row0, times the transpose of the tile b.
template <class T, int R, int DIM>
__device__ __forceinline__ void multiply_transposed(float (&x)[R / 8][4], const HalfTile<DIM>& a,
                                                    int row0, const HalfTile<DIM>& b) {
#pragma unroll 4  // all at once would hold more addresses than there are registers
  for (int k = 0; k < DIM / 16; ++k) {
    uint32_t left[4];
    load_a(left, a, row0, k);
#pragma unroll
    for (int n = 0; n < R / 16; ++n) {
      uint32_t right[4];
      load_b_transposed(right, b, n * 16, k);
      mma_of<T>(x[2 * n], left, right[0], right[1]);
      mma_of<T>(x[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// Turns one score and its gradient into p and ds (without the scale).
template <bool CAPPED>
__device__ __forceinline__ void soften(float& s, float& ds, const Query& q, int key, float scale,
                                       const ScoreCap& cap) {
  const bool sees = key >= q.begin && key < q.end;
  if constexpr (CAPPED) {
    const float score = cap.capped(s * scale);
    s = sees ? fast_exp2(score - q.lse) : 0.0f;
    ds = sees ? s * (ds - q.delta) * cap.slope(score) : 0.0f;
  } else {
    const float p = sees ? fast_exp2(s * scale - q.lse) : 0.0f;
    s = p;
    ds = sees ? p * (ds - q.delta) : 0.0f;
  }
}

template <int DIM, bool CAPPED, class T>
__global__ void __launch_bounds__(kThreads, 1)
    backward_of_keys(Operands<T> a, PairHeads<T> dk_heads, PairHeads<T> dv_heads, bool add,
                     float* dk_amax, float* dv_amax) {
  constexpr int R = kMoving<DIM>;
  const int G = a.A / a.group, D = a.q.D, warp = int(threadIdx.x) / kWarp;
  const int g = int(blockIdx.x) % G, b = int(blockIdx.x) / G % a.q.B;
  const int key0 = int(blockIdx.x) / G / a.q.B * kKept;
  const Shared<DIM> shared{dynamic_shared<unsigned char>()};
  const Range rows = a.sight.rows_that_see(key0, min(key0 + kKept, a.sight.Skv));
  const int tiles = max(0, (rows.end - rows.begin + R - 1) / R), steps = tiles * a.group;

  const auto fetch = [&](int step, int stage) {
    const int head = g * a.group + step / tiles, q0 = rows.begin + step % tiles * R;
    copy_rows<R, kThreads>(shared.moving(stage, 0), a.q.of(b, head), q0, a.sight.Sq, D);
    copy_rows<R, kThreads>(shared.moving(stage, 1), a.dout.of(b, head), q0, a.sight.Sq, D);
    copy_async_commit();
    if (threadIdx.x < R)
      shared.queries(stage)[threadIdx.x] = query_at(a, b, head, q0 + int(threadIdx.x));
  };
  copy_rows<kKept, kThreads>(shared.kept(0), a.k.of(b, g), key0, a.sight.Skv, D);
  copy_rows<kKept, kThreads>(shared.kept(1), a.v.of(b, g), key0, a.sight.Skv, D);
  copy_async_commit();
  if (steps > 0) fetch(0, 0);
  float dk[DIM / 8][4] = {}, dv[DIM / 8][4] = {};
  const int lane = int(threadIdx.x) % kWarp, key = key0 + warp * 16 + lane / 4;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages;
    copy_async_wait<0>();
    __syncthreads();  // this tile is complete for all threads, and none still reads the previous
                      // one
    if (step + 1 < steps) fetch(step + 1, stage ^ 1);
    float s[R / 8][4] = {}, ds[R / 8][4] = {};
    multiply_transposed<T, R>(s, shared.kept(0), warp * 16, shared.moving(stage, 0));
    multiply_transposed<T, R>(ds, shared.kept(1), warp * 16, shared.moving(stage, 1));
#pragma unroll
    for (int n = 0; n < R / 8; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Query q = shared.queries(stage)[n * 8 + lane % 4 * 2 + j];
        const float scale = a.scale * kAttentionLog2E;
        soften<CAPPED>(s[n][j], ds[n][j], q, key, scale, a.cap);
        soften<CAPPED>(s[n][2 + j], ds[n][2 + j], q, key + 8, scale, a.cap);
      }
#pragma unroll
    for (int k = 0; k < R / 16; ++k) {
      uint32_t left[4];
      as_operand<T>(left, s[2 * k], s[2 * k + 1]);
      multiply_rows<T, DIM>(dv, left, shared.moving(stage, 1), k * 16);
      as_operand<T>(left, ds[2 * k], ds[2 * k + 1]);
      multiply_rows<T, DIM>(dk, left, shared.moving(stage, 0), k * 16);
    }
  }
  copy_async_wait<0>();
  const int row0 = key0 + warp * 16;
  put_sums<DIM>(dk_heads.of(b, g), dk, row0, a.sight.Skv, D, a.scale, a.scale, add);
  put_sums<DIM>(dv_heads.of(b, g), dv, row0, a.sight.Skv, D, 1.0f, 1.0f, add);
  raise_amax_of_sums<DIM, T>(dk_amax, dk, row0, a.sight.Skv, D, a.scale, a.scale);
  raise_amax_of_sums<DIM, T>(dv_amax, dv, row0, a.sight.Skv, D, 1.0f, 1.0f);
}

template <int DIM, bool CAPPED, class T>
__global__ void __launch_bounds__(kThreads, 1)
    backward_of_queries(Operands<T> a, PairHeads<T> dq_heads, bool add, float* amax) {
  constexpr int R = kMoving<DIM>;
  const int blocks = (a.sight.Sq + kKept - 1) / kKept, D = a.q.D, last = a.sight.Sq - 1;
  const int head = int(blockIdx.x) % a.A, b = int(blockIdx.x) / a.A % a.q.B;
  const int q0 = (blocks - 1 - int(blockIdx.x) / a.A / a.q.B) * kKept;
  const Shared<DIM> shared{dynamic_shared<unsigned char>()};
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int row0 = q0 + warp * 16, begin = a.sight(q0).begin;
  const int end = a.sight(min(q0 + kKept - 1, last)).end;
  const Query mine[2] = {query_at(a, b, head, row0 + lane / 4),
                         query_at(a, b, head, row0 + lane / 4 + 8)};

  const auto fetch = [&](int key0, int stage) {
    copy_rows<R, kThreads>(shared.moving(stage, 0), a.k.of(b, head / a.group), key0, a.sight.Skv,
                           D);
    copy_rows<R, kThreads>(shared.moving(stage, 1), a.v.of(b, head / a.group), key0, a.sight.Skv,
                           D);
    copy_async_commit();
  };
  copy_rows<kKept, kThreads>(shared.kept(0), a.q.of(b, head), q0, a.sight.Sq, D);
  copy_rows<kKept, kThreads>(shared.kept(1), a.dout.of(b, head), q0, a.sight.Sq, D);
  copy_async_commit();
  if (begin < end) fetch(begin, 0);
  float dq[DIM / 8][4] = {};
  int stage = 0;
  for (int key0 = begin; key0 < end; key0 += R, stage ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // this tile is complete for all threads, and none still reads the previous
                      // one
    if (key0 + R < end) fetch(key0 + R, stage ^ 1);
    float s[R / 8][4] = {}, ds[R / 8][4] = {};
    multiply_transposed<T, R>(s, shared.kept(0), warp * 16, shared.moving(stage, 0));
    multiply_transposed<T, R>(ds, shared.kept(1), warp * 16, shared.moving(stage, 1));
#pragma unroll
    for (int n = 0; n < R / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        soften<CAPPED>(s[n][i], ds[n][i], mine[i / 2], key0 + n * 8 + lane % 4 * 2 + i % 2,
                       a.scale * kAttentionLog2E, a.cap);
#pragma unroll
    for (int k = 0; k < R / 16; ++k) {
      uint32_t left[4];
      as_operand<T>(left, ds[2 * k], ds[2 * k + 1]);
      multiply_rows<T, DIM>(dq, left, shared.moving(stage, 0), k * 16);
    }
  }
  copy_async_wait<0>();
  put_sums<DIM>(dq_heads.of(b, head), dq, row0, a.sight.Sq, D, a.scale, a.scale, add);
  raise_amax_of_sums<DIM, T>(amax, dq, row0, a.sight.Sq, D, a.scale, a.scale);
}

template <int DIM, bool CAPPED, class T>
void start(const AttentionBackward& g, const float* delta, CUstream_st* stream) {
  const AttentionShape& s = g.shape;
  const Operands<T> a{heads_of<T>(g.q, s),
                      heads_of<T>(g.k, s),
                      heads_of<T>(g.v, s),
                      heads_of<T>(g.dout, s),
                      data<float>(g.lse),
                      delta,
                      s.lse_stride ? s.lse_stride : s.Sq,
                      VisibleKeys(s),
                      int(s.A),
                      int(s.A / s.G),
                      s.scale,
                      ScoreCap(s.cap)};
  MT_LAUNCH((backward_of_keys<DIM, CAPPED, T>), unsigned(div_up(s.Skv, kKept) * s.G * s.B),
            kThreads, Shared<DIM>::kBytes, stream, a, pairs_of<T>(g.dk, s), pairs_of<T>(g.dv, s),
            g.add_dkv, data<float>(g.dqk_amax), data<float>(g.dv_amax));
  MT_LAUNCH((backward_of_queries<DIM, CAPPED, T>), unsigned(div_up(s.Sq, kKept) * s.A * s.B),
            kThreads, Shared<DIM>::kBytes, stream, a, pairs_of<T>(g.dq, s), g.add_dq,
            data<float>(g.dqk_amax));
}

bool has_aligned_chunks(const HeadView& v) {
  return aligned({v.data.data}) && v.token_stride % 8 == 0;
}
bool has_aligned_chunks(const HeadSpan& v) {
  return has_aligned_chunks(HeadView{v.data, v.token_stride});
}

}  // namespace

bool tensor_cores_can(const AttentionBackward& g) {
  const AttentionShape& s = g.shape;
  return is_half(g.q.data.dtype) && s.D % 8 == 0 && s.D <= 128 && s.Sq > 0 && s.Skv > 0 &&
         has_aligned_chunks(g.q) && has_aligned_chunks(g.k) && has_aligned_chunks(g.v) &&
         has_aligned_chunks(g.dout) && has_aligned_chunks(g.dq) && has_aligned_chunks(g.dk) &&
         has_aligned_chunks(g.dv);
}

void attention_on_tensor_cores(const AttentionBackward& g, const float* delta,
                               CUstream_st* stream) {
  const auto start_as = [&]<class T>() {
    const bool capped = g.shape.cap > 0;
    if (g.shape.D <= 64)
      capped ? start<64, true, T>(g, delta, stream) : start<64, false, T>(g, delta, stream);
    else
      capped ? start<128, true, T>(g, delta, stream) : start<128, false, T>(g, delta, stream);
  };
  if (g.q.data.dtype == DType::f16)
    start_as.template operator()<f16>();
  else
    start_as.template operator()<bf16>();
}

}  // namespace mtrain::kernels::cuda
