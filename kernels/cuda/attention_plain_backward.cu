// Flash attention's backward without tensor cores. In one kernel a block has some keys and iterates
// over the queries that attend to them; in the other it has some queries and iterates over their
// keys. Both recompute the probabilities, and no sum depends on the order of blocks.
#include "kernels/cuda/device/amax.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/attention_tile.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

struct Operands {
  AnyHeads q, k, v, dout;
  const float *lse, *delta;
  int64_t lse_stride;
  VisibleKeys sight;
  int A, group;
  float scale;
  ScoreCap cap;
};

// The shared memory of a block.
template <class S>
struct Shared {
  Tile<S> q, dout, k, v;
  float *p, *ds;
  static constexpr size_t kBytes = (4 * S::kFloats + 2 * S::ROWS * S::kScoreStride) * sizeof(float);
  __device__ __forceinline__ explicit Shared(float* at)
      : q{at},
        dout{at + S::kFloats},
        k{at + 2 * S::kFloats},
        v{at + 3 * S::kFloats},
        p(at + 4 * S::kFloats),
        ds(p + S::ROWS * S::kScoreStride) {}
};

// Computes the probabilities p and the gradients of scores ds (without the scale) of the current
// tiles.
template <bool CAPPED, class S>
__device__ __forceinline__ void scores(const Shared<S>& tiles, const Operands& a, int b, int head,
                                       int q0, int key0) {
  constexpr int kMyRows = S::kMyRows, kMyColumns = S::kMyColumns;
  float s[kMyRows][kMyColumns], dp[kMyRows][kMyColumns];
  multiply(tiles.q, tiles.k, s);
  multiply(tiles.dout, tiles.v, dp);
#pragma unroll
  for (int i = 0; i < kMyRows; ++i) {
    const int row = q0 + S::my_row(i);
    const bool inside = row < a.sight.Sq;
    const Range seen = inside ? a.sight(row) : Range{0, 0};
    const int64_t at = int64_t(b) * a.A + head;
    const float lse = inside ? a.lse[at * a.lse_stride + row] * kAttentionLog2E : 0.0f;
    const float delta = inside ? a.delta[at * a.sight.Sq + row] : 0.0f;
#pragma unroll
    for (int j = 0; j < kMyColumns; ++j) {
      const int key = key0 + S::my_column(j);
      const bool sees = key >= seen.begin && key < seen.end;
      if constexpr (CAPPED) {
        s[i][j] = a.cap.capped(s[i][j] * (a.scale * kAttentionLog2E));
        dp[i][j] = (dp[i][j] - delta) * a.cap.slope(s[i][j]);
      }
      const float score = CAPPED ? s[i][j] : s[i][j] * (a.scale * kAttentionLog2E);
      const float p = sees ? exp2f(score - lse) : 0.0f;
      const int to = S::my_row(i) * S::kScoreStride + S::my_column(j);
      tiles.p[to] = p;
      tiles.ds[to] = !sees ? 0.0f : CAPPED ? p * dp[i][j] : p * (dp[i][j] - delta);
    }
  }
}

template <class S, bool CAPPED>
__global__ void __launch_bounds__(kTileThreads, 1)
    backward_of_keys(Operands a, AnyHeads dk_heads, AnyHeads dv_heads, bool add, float* dk_amax,
                     float* dv_amax) {
  const int G = a.A / a.group, D = a.q.D;
  const int g = int(blockIdx.x) % G, b = int(blockIdx.x) / G % a.q.B;
  const int key0 = int(blockIdx.x) / G / a.q.B * S::ROWS;
  const Shared<S> tiles(dynamic_shared<float>());
  Sums<S> dk{}, dv{};
  fill_tile(tiles.k, a.k.of(b, g), key0, a.sight.Skv, D);
  fill_tile(tiles.v, a.v.of(b, g), key0, a.sight.Skv, D);
  const Range rows = a.sight.rows_that_see(key0, min(key0 + S::ROWS, a.sight.Skv));
  for (int head = g * a.group; head < (g + 1) * a.group; ++head)
    for (int q0 = rows.begin; q0 < rows.end; q0 += S::ROWS) {
      __syncthreads();  // the tiles have been read
      fill_tile(tiles.q, a.q.of(b, head), q0, a.sight.Sq, D);
      fill_tile(tiles.dout, a.dout.of(b, head), q0, a.sight.Sq, D);
      __syncthreads();
      scores<CAPPED>(tiles, a, b, head, q0, key0);
      __syncthreads();
      dv.add(tiles.dout, [&](int key, int q) { return tiles.p[q * S::kScoreStride + key]; });
      dk.add(tiles.q, [&](int key, int q) { return tiles.ds[q * S::kScoreStride + key]; });
    }
  float dk_max = 0, dv_max = 0;
  dk.put(
      dk_heads.of(b, g), key0, a.sight.Skv, D, add, [&](int) { return a.scale; },
      [&](int, int, float x) { dk_max = fmaxf(dk_max, finite_size(x)); });
  dv.put(
      dv_heads.of(b, g), key0, a.sight.Skv, D, add, [](int) { return 1.0f; },
      [&](int, int, float x) { dv_max = fmaxf(dv_max, finite_size(x)); });
  if (dk_amax) raise_amax(dk_amax, dk_max);
  if (dv_amax) raise_amax(dv_amax, dv_max);
}

template <class S, bool CAPPED>
__global__ void __launch_bounds__(kTileThreads, 1)
    backward_of_queries(Operands a, AnyHeads dq_heads, bool add, float* amax) {
  const int tiles_of_q = (a.sight.Sq + S::ROWS - 1) / S::ROWS, D = a.q.D;
  const int head = int(blockIdx.x) % a.A, b = int(blockIdx.x) / a.A % a.q.B;
  const int q0 = (tiles_of_q - 1 - int(blockIdx.x) / a.A / a.q.B) * S::ROWS;
  const Shared<S> tiles(dynamic_shared<float>());
  Sums<S> dq{};
  fill_tile(tiles.q, a.q.of(b, head), q0, a.sight.Sq, D);
  fill_tile(tiles.dout, a.dout.of(b, head), q0, a.sight.Sq, D);
  const int end = a.sight(min(q0 + S::ROWS, a.sight.Sq) - 1).end;
  for (int key0 = a.sight(q0).begin; key0 < end; key0 += S::ROWS) {
    __syncthreads();  // the tiles have been read
    fill_tile(tiles.k, a.k.of(b, head / a.group), key0, a.sight.Skv, D);
    fill_tile(tiles.v, a.v.of(b, head / a.group), key0, a.sight.Skv, D);
    __syncthreads();
    scores<CAPPED>(tiles, a, b, head, q0, key0);
    __syncwarp();  // the warp that has written a row of ds reads it
    dq.add(tiles.k, [&](int q, int key) { return tiles.ds[q * S::kScoreStride + key]; });
  }
  float most = 0;
  dq.put(
      dq_heads.of(b, head), q0, a.sight.Sq, D, add, [&](int) { return a.scale; },
      [&](int, int, float x) { most = fmaxf(most, finite_size(x)); });
  if (amax) raise_amax(amax, most);
}

constexpr int kDeltaWarps = 8;
template <int N, class T>
__global__ void delta(Heads<const T> out, Heads<const T> dout, float* delta, int A, int Sq) {
  const int64_t rows = int64_t(out.B) * A * Sq, step = int64_t(gridDim.x) * kDeltaWarps;
  for (int64_t i = int64_t(blockIdx.x) * kDeltaWarps + threadIdx.y; i < rows; i += step) {
    // Heads of a token are neighbours in memory.
    const int head = int(i % A), b = int(i / A % out.B), row = int(i / A / out.B);
    const T *x = out.of(b, head).row(row), *y = dout.of(b, head).row(row);
    float sum = 0;
    for (int d = int(threadIdx.x) * N; d < out.D; d += kWarp * N) {
      float u[N], v[N];
      load<N>(x + d, u);
      load<N>(y + d, v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += u[j] * v[j];
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) delta[(int64_t(b) * A + head) * Sq + row] = sum;
  }
}

template <class S, bool CAPPED>
void start(const AttentionBackward& g, const float* delta, CUstream_st* stream) {
  const AttentionShape& s = g.shape;
  const Operands a{any_heads(g.q, s),
                   any_heads(g.k, s),
                   any_heads(g.v, s),
                   any_heads(g.dout, s),
                   data<float>(g.lse),
                   delta,
                   s.lse_stride ? s.lse_stride : s.Sq,
                   VisibleKeys(s),
                   int(s.A),
                   int(s.A / s.G),
                   s.scale,
                   ScoreCap(s.cap)};
  constexpr size_t kBytes = Shared<S>::kBytes;
  if (s.Skv > 0)
    MT_LAUNCH((backward_of_keys<S, CAPPED>), unsigned(div_up(s.Skv, S::ROWS) * s.G * s.B),
              kTileThreads, kBytes, stream, a, any_heads(g.dk, s), any_heads(g.dv, s), g.add_dkv,
              data<float>(g.dqk_amax), data<float>(g.dv_amax));
  if (s.Sq > 0)
    MT_LAUNCH((backward_of_queries<S, CAPPED>), unsigned(div_up(s.Sq, S::ROWS) * s.A * s.B),
              kTileThreads, kBytes, stream, a, any_heads(g.dq, s), g.add_dq,
              data<float>(g.dqk_amax));
}

}  // namespace

void attention_delta(const AttentionBackward& b, float* to, CUstream_st* stream) {
  const AttentionShape& s = b.shape;
  constexpr int N = 4;
  const bool vectors = aligned({b.out.data.data, b.dout.data.data}) && s.D % N == 0 &&
                       b.out.token_stride % N == 0 && b.dout.token_stride % N == 0;
  with_float(b.q.data.dtype, [&]<class T>() {
    const auto start = [&](void (*kernel)(Heads<const T>, Heads<const T>, float*, int, int)) {
      MT_LAUNCH(kernel, blocks_for(s.B * s.A * s.Sq, kDeltaWarps), dim3(kWarp, kDeltaWarps), 0,
                stream, heads_of<T>(b.out, s), heads_of<T>(b.dout, s), to, int(s.A), int(s.Sq));
    };
    start(vectors ? delta<N, T> : delta<1, T>);
  });
}

void attention_plain(const AttentionBackward& b, const float* delta, CUstream_st* stream) {
  using Wide = TileSizes<kMaxHeadDim, kTile>;
  const auto start_as = [&]<bool CAPPED>() {
    if (b.shape.D <= 64)
      start<TileSizes<64, kTile>, CAPPED>(b, delta, stream);
    else if (b.shape.D <= 128)
      start<TileSizes<128, kTile>, CAPPED>(b, delta, stream);
    else if (block_can_have(Shared<Wide>::kBytes))
      start<Wide, CAPPED>(b, delta, stream);
    else
      start<TileSizes<kMaxHeadDim, kSmallTile>, CAPPED>(b, delta, stream);
  };
  b.shape.cap > 0 ? start_as.template operator()<true>() : start_as.template operator()<false>();
}

}  // namespace mtrain::kernels::cuda
