// Flash attention's forward without tensor cores, for fp32 and for shapes and alignments that the
// other kernels do not support. A block has a tile of a head's queries and iterates over their
// keys.
#include "kernels/cuda/device/amax.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/attention_tile.h"
#include "kernels/cuda/device/float8_store.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

template <class S, bool CAPPED>
__global__ void __launch_bounds__(kTileThreads, 1)
    forward(AnyHeads q_heads, AnyHeads k_heads, AnyHeads v_heads, AnyHeads out_heads, float* lse,
            int64_t lse_stride, VisibleKeys sight, int A, int group, float scale, ScoreCap cap,
            float* amax, Float8Out eight) {
  constexpr int kRows = S::ROWS, kMyRows = S::kMyRows, kMyColumns = S::kMyColumns;
  constexpr int kScoreStride = S::kScoreStride;
  const int tiles = (sight.Sq + kRows - 1) / kRows;
  const int head = int(blockIdx.x) % A, b = int(blockIdx.x) / A % q_heads.B, D = q_heads.D;
  // Under a causal mask the last queries attend to the most keys: they are first.
  const int q0 = (tiles - 1 - int(blockIdx.x) / A / q_heads.B) * kRows;
  float* const shared = dynamic_shared<float>();
  const Tile<S> q{shared}, k{shared + S::kFloats}, v{shared + 2 * S::kFloats};
  float* const p = shared + 3 * S::kFloats;

  Range seen[kMyRows];
  float top[kMyRows], sum[kMyRows];
#pragma unroll
  for (int i = 0; i < kMyRows; ++i) {
    const int row = q0 + S::my_row(i);
    seen[i] = row < sight.Sq ? sight(row) : Range{0, 0};
    top[i] = -INFINITY, sum[i] = 0;
  }
  Sums<S> out{};
  fill_tile(q, q_heads.of(b, head), q0, sight.Sq, D);
  const AnyRows keys = k_heads.of(b, head / group), values = v_heads.of(b, head / group);
  const int end = sight(min(q0 + kRows, sight.Sq) - 1).end;
  for (int key0 = sight(q0).begin; key0 < end; key0 += kRows) {
    __syncthreads();  // the tiles have been read
    fill_tile(k, keys, key0, sight.Skv, D);
    fill_tile(v, values, key0, sight.Skv, D);
    __syncthreads();
    float s[kMyRows][kMyColumns];
    multiply(q, k, s);
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
      float most = top[i];
#pragma unroll
      for (int j = 0; j < kMyColumns; ++j) {
        const int key = key0 + S::my_column(j);
        if constexpr (CAPPED) s[i][j] = cap.capped(s[i][j] * (scale * kAttentionLog2E));
        const float score = CAPPED ? s[i][j] : s[i][j] * (scale * kAttentionLog2E);
        s[i][j] = key >= seen[i].begin && key < seen[i].end ? score : -INFINITY;
        most = fmaxf(most, s[i][j]);
      }
      most = across_max(most);
      const float shift = most == -INFINITY ? 0.0f : most, decay = exp2f(top[i] - shift);
      float mine = 0;
#pragma unroll
      for (int j = 0; j < kMyColumns; ++j) {
        s[i][j] = exp2f(s[i][j] - shift);
        mine += s[i][j];
        p[S::my_row(i) * kScoreStride + S::my_column(j)] = s[i][j];
      }
      sum[i] = sum[i] * decay + across_sum(mine);
      top[i] = most;
#pragma unroll
      for (int part = 0; part < Sums<S>::kParts; ++part)
#pragma unroll
        for (int c = 0; c < 4; ++c) out.at[i][part][c] *= decay;
    }
    __syncwarp();  // the warp that has written a row of p reads it
    out.add(v, [&](int row, int key) { return p[row * kScoreStride + key]; });
  }
  const float of_8_bits = eight.scale ? *eight.scale : 0.0f;
  float most = 0;
  out.put(
      out_heads.of(b, head), q0, sight.Sq, D, false,
      [&](int i) { return sum[i] == 0 ? 0.0f : 1.0f / sum[i]; },
      [&](int row, int d, float x) {
        const float one[1] = {x};
        if (eight.scale)
          store_float8<float>(eight, out_heads.element(b, head, row) + d, one, of_8_bits);
        most = fmaxf(most, finite_size(x));
      });
  if (amax) raise_amax(amax, most);
#pragma unroll
  for (int i = 0; i < kMyRows; ++i) {
    const int row = q0 + S::my_row(i);
    if (row < sight.Sq && S::my_column(0) == 0)
      lse[(int64_t(b) * A + head) * lse_stride + row] =
          sum[i] == 0 ? -INFINITY : top[i] * kAttentionLn2 + logf(sum[i]);
  }
}

template <class S>
constexpr size_t kShared = (3 * S::kFloats + S::ROWS * S::kScoreStride) * sizeof(float);

template <class S, bool CAPPED>
void start(const AttentionForward& f, CUstream_st* stream) {
  const AttentionShape& s = f.shape;
  const unsigned blocks = unsigned(div_up(s.Sq, S::ROWS) * s.A * s.B);
  MT_LAUNCH((forward<S, CAPPED>), blocks, kTileThreads, kShared<S>, stream, any_heads(f.q, s),
            any_heads(f.k, s), any_heads(f.v, s), any_heads(f.out, s), data<float>(f.lse),
            s.lse_stride ? s.lse_stride : s.Sq, VisibleKeys(s), int(s.A), int(s.A / s.G), s.scale,
            ScoreCap(s.cap), data<float>(f.amax), float8_out(f.quantized, f.scale));
}

}  // namespace

void attention_plain(const AttentionForward& f, CUstream_st* stream) {
  using Wide = TileSizes<kMaxHeadDim, kTile>;
  const auto start_as = [&]<bool CAPPED>() {
    if (f.shape.D <= 64)
      start<TileSizes<64, kTile>, CAPPED>(f, stream);
    else if (f.shape.D <= 128)
      start<TileSizes<128, kTile>, CAPPED>(f, stream);
    else if (block_can_have(kShared<Wide>))
      start<Wide, CAPPED>(f, stream);
    else
      start<TileSizes<kMaxHeadDim, kSmallTile>, CAPPED>(f, stream);
  };
  f.shape.cap > 0 ? start_as.template operator()<true>() : start_as.template operator()<false>();
}

}  // namespace mtrain::kernels::cuda
