// One kernel for all experts: a block finds the expert of its tile from the first rows, which lie
// on the device, so that the host need not know them. Tensor cores take 16-bit operands whose rows
// are whole 16-byte chunks; a plain kernel takes all others.
#include "kernels/grouped_matmul.h"

#include "kernels/cuda/device/attention_mma.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

// --- which rows a block has ---
struct RowTile {
  int expert;  // -1: none
  int row, end;
};
// Tiles of HEIGHT rows are numbered expert by expert. All threads of a block call this.
template <int HEIGHT>
__device__ __forceinline__ RowTile find_tile(const int32_t* first_E1, int E, int number) {
  __shared__ RowTile found;
  if (threadIdx.x == 0) {
    found = {-1, 0, 0};
    for (int e = 0, before = 0; e < E; ++e) {
      const int row = first_E1[e], end = first_E1[e + 1];
      const int tiles = (end - row + HEIGHT - 1) / HEIGHT;
      if (number < before + tiles) {
        found = {e, row + (number - before) * HEIGHT, end};
        break;
      }
      before += tiles;
    }
  }
  __syncthreads();
  return found;
}
// Returns enough blocks for the tiles of any split of R rows.
unsigned most_tiles(int64_t R, int64_t E, int64_t height) { return unsigned(R / height + E); }

// --- tensor cores: tiles of 128 x 128, 64 of the sum at once ---
constexpr int kSide = 128, kDepth = 64, kThreads = 256, kStages = 2;
constexpr int kWarpRows = 64, kWarpColumns = 32;  // 2 x 4 warps
constexpr int64_t kStageBytes = 2 * kSide * kDepth * 2;

// Starts to copy rows [0, ROWS) and DIM columns of x; elements beyond `rows` and `columns` become
// 0.
template <int ROWS, int DIM, class T>
__device__ __forceinline__ void copy_tile(const HalfTile<DIM>& tile, const T* x, int64_t ld,
                                          int64_t rows, int64_t columns) {
  constexpr int kChunks = HalfTile<DIM>::kChunks;
#pragma unroll
  for (int n = 0; n < ROWS * kChunks / kThreads; ++n) {
    const int i = n * kThreads + int(threadIdx.x), r = i / kChunks, c = i % kChunks;
    const bool valid = r < rows && c * 8 < columns;
    copy_async(tile.chunk(r, c), valid ? x + r * ld + c * 8 : x, valid);
  }
}

// An operand in shared memory whose rows lie along the sum (tile (128, 64)), or across it (64,
// 128).
template <bool ACROSS>
using OperandTile = HalfTile<ACROSS ? kSide : kDepth>;

// Copies the part of the sum from k on. `x` is the operand's first element in this block's tile.
template <bool ACROSS, class T>
__device__ __forceinline__ void copy_operand(const OperandTile<ACROSS>& tile, const T* x,
                                             int64_t ld, int64_t side, int64_t k, int64_t K) {
  if constexpr (ACROSS)
    copy_tile<kDepth>(tile, x + k * ld, ld, K - k, side);
  else
    copy_tile<kSide>(tile, x + k, ld, side, K - k);
}

// Loads the operand a (16, 16) of the transpose of `tile`: its columns from row0 on, its rows from
// 16 k on.
__device__ __forceinline__ void load_a_across(uint32_t (&a)[4], const HalfTile<kSide>& tile,
                                              int row0, int k) {
  const int lane = int(threadIdx.x) % kWarp, matrix = lane / 8;
  load_matrices<true>(a, tile.chunk(16 * k + matrix / 2 * 8 + lane % 8, row0 / 8 + matrix % 2));
}

using Sums = float[kWarpRows / 16][kWarpColumns / 8][4];

// Adds one stage to the warp's sums.
template <Half T, bool A_ACROSS, bool B_ACROSS>
__device__ __forceinline__ void multiply_stage(Sums& sum, const OperandTile<A_ACROSS>& a_tile,
                                               const OperandTile<B_ACROSS>& b_tile, int row0,
                                               int column0) {
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t a[kWarpRows / 16][4];
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
      if constexpr (A_ACROSS)
        load_a_across(a[i], a_tile, row0 + 16 * i, k);
      else
        load_a(a[i], a_tile, row0 + 16 * i, k);
    }
#pragma unroll
    for (int j = 0; j < kWarpColumns / 16; ++j) {
      uint32_t b[4];
      if constexpr (B_ACROSS)
        load_b(b, b_tile, 16 * k, column0 / 16 + j);
      else
        load_b_transposed(b, b_tile, column0 + 16 * j, k);
#pragma unroll
      for (int i = 0; i < kWarpRows / 16; ++i) {
        mma_of<T>(sum[i][2 * j], a[i], b[0], b[1]);
        mma_of<T>(sum[i][2 * j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// The product of one tile: `rows` and `columns` of it exist, and K numbers are summed.
template <Half T>
struct TileProduct {
  const T *a, *b;  // first elements of the tile's operands
  int64_t a_ld, b_ld;
  int rows, columns;
  int64_t K;
  PairRows<T> c;
  bool add;
};

template <Half T, bool A_ACROSS, bool B_ACROSS>
__device__ __forceinline__ void compute_tile(const TileProduct<T>& p) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const auto a_tile = [&](int stage) {
    return OperandTile<A_ACROSS>{memory + stage * kStageBytes};
  };
  const auto b_tile = [&](int stage) {
    return OperandTile<B_ACROSS>{memory + stage * kStageBytes + kStageBytes / 2};
  };
  const auto fetch = [&](int64_t k, int stage) {
    copy_operand<A_ACROSS>(a_tile(stage), p.a, p.a_ld, p.rows, k, p.K);
    copy_operand<B_ACROSS>(b_tile(stage), p.b, p.b_ld, p.columns, k, p.K);
    copy_async_commit();
  };
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int row0 = warp / 4 * kWarpRows, column0 = warp % 4 * kWarpColumns;
  Sums sum = {};
  if (p.K > 0) fetch(0, 0);
  int stage = 0;
  for (int64_t k = 0; k < p.K; k += kDepth, stage ^= 1) {
    if (k + kDepth < p.K) {
      fetch(k + kDepth, stage ^ 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    multiply_stage<T, A_ACROSS, B_ACROSS>(sum, a_tile(stage), b_tile(stage), row0, column0);
    __syncthreads();  // the stage may be written again
  }
#pragma unroll
  for (int i = 0; i < kWarpRows / 16; ++i)
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      const int row = row0 + 16 * i + lane / 4, column = column0 + 8 * j + lane % 4 * 2;
      if (column >= p.columns) continue;
      if (row < p.rows) p.c.put(row, column, sum[i][j][0], sum[i][j][1], p.add);
      if (row + 8 < p.rows) p.c.put(row + 8, column, sum[i][j][2], sum[i][j][3], p.add);
    }
}

template <Half T, bool TRANS_B>
__global__ void __launch_bounds__(kThreads)
    rows_in_tensor_cores(const T* a_RK, const T* b_EKN, const int32_t* first_E1, char* c_RN,
                         bool half, int N, int K, int E) {
  const RowTile tile = find_tile<kSide>(first_E1, E, int(blockIdx.y));
  if (tile.expert < 0) return;
  const int column = int(blockIdx.x) * kSide;
  const T* const b = b_EKN + int64_t(tile.expert) * K * N;
  compute_tile<T, false, !TRANS_B>(
      {.a = a_RK + int64_t(tile.row) * K,
       .b = TRANS_B ? b + int64_t(column) * K : b + column,
       .a_ld = K,
       .b_ld = TRANS_B ? K : N,
       .rows = min(kSide, tile.end - tile.row),
       .columns = min(kSide, N - column),
       .K = K,
       .c = {c_RN + (int64_t(tile.row) * N + column) * (half ? 2 : 4), N, half},
       .add = false});
}

template <Half T>
__global__ void __launch_bounds__(kThreads)
    weights_in_tensor_cores(const T* a_RM, const T* b_RN, const int32_t* first_E1, float* c_EMN,
                            int M, int N, bool accumulate) {
  const int expert = int(blockIdx.z), row = int(blockIdx.y) * kSide;
  const int column = int(blockIdx.x) * kSide;
  const int64_t first = first_E1[expert], K = first_E1[expert + 1] - first;
  if (K == 0 && accumulate) return;
  float* const c = c_EMN + (int64_t(expert) * M + row) * N + column;
  compute_tile<T, true, true>({.a = a_RM + first * M + row,
                               .b = b_RN + first * N + column,
                               .a_ld = M,
                               .b_ld = N,
                               .rows = min(kSide, M - row),
                               .columns = min(kSide, N - column),
                               .K = K,
                               .c = {reinterpret_cast<char*>(c), N, false},
                               .add = accumulate});
}

// --- the plain kernel: tiles of 32 x 32, a thread has 2 x 2 ---
constexpr int kPlainSide = 32, kPlainThreads = 256;

// Element (i, k) of an operand is at i * ld + k, or at k * ld + i where its rows lie across the
// sum.
template <class T>
struct PlainOperand {
  const T* x;
  int64_t ld;
  bool across;
  __device__ __forceinline__ float get(int64_t i, int64_t k) const {
    return load_one(x + (across ? k * ld + i : i * ld + k));
  }
};

template <class T, class Put>
__device__ __forceinline__ void compute_plain_tile(const PlainOperand<T>& a,
                                                   const PlainOperand<T>& b, int rows, int columns,
                                                   int64_t K, const Put& put) {
  __shared__ float a_tile[kPlainSide][kPlainSide + 1], b_tile[kPlainSide][kPlainSide + 1];
  const int row = int(threadIdx.x) / 16 * 2, column = int(threadIdx.x) % 16 * 2;
  float sum[2][2] = {};
  for (int64_t k0 = 0; k0 < K; k0 += kPlainSide) {
    for (int i = int(threadIdx.x); i < kPlainSide * kPlainSide; i += kPlainThreads) {
      // Neighbouring threads read neighbours in memory.
      const auto fill = [&](float(&tile)[kPlainSide][kPlainSide + 1], const PlainOperand<T>& from,
                            int side) {
        const int at = from.across ? i % kPlainSide : i / kPlainSide;
        const int k = from.across ? i / kPlainSide : i % kPlainSide;
        tile[at][k] = at < side && k0 + k < K ? from.get(at, k0 + k) : 0.0f;
      };
      fill(a_tile, a, rows);
      fill(b_tile, b, columns);
    }
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < kPlainSide; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) sum[i][j] += a_tile[row + i][k] * b_tile[column + j][k];
    __syncthreads();  // the tiles may be written again
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (row + i < rows && column + j < columns) put(row + i, column + j, sum[i][j]);
}

template <class T, class Out>
__global__ void __launch_bounds__(kPlainThreads)
    plain_rows(const T* a_RK, const T* b_EKN, const int32_t* first_E1, Out* c_RN, int N, int K,
               int E, bool trans_b) {
  const RowTile tile = find_tile<kPlainSide>(first_E1, E, int(blockIdx.y));
  if (tile.expert < 0) return;
  const int column = int(blockIdx.x) * kPlainSide;
  const T* const b = b_EKN + int64_t(tile.expert) * K * N;
  Out* const c = c_RN + int64_t(tile.row) * N + column;
  compute_plain_tile<T>(
      {a_RK + int64_t(tile.row) * K, K, false},
      {trans_b ? b + int64_t(column) * K : b + column, trans_b ? K : N, !trans_b},
      min(kPlainSide, tile.end - tile.row), min(kPlainSide, N - column), K,
      [&](int row, int col, float x) { store_one(c + int64_t(row) * N + col, x); });
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_weights(const T* a_RM, const T* b_RN, const int32_t* first_E1, float* c_EMN, int M, int N,
                  bool accumulate) {
  const int expert = int(blockIdx.z), row = int(blockIdx.y) * kPlainSide;
  const int column = int(blockIdx.x) * kPlainSide;
  const int64_t first = first_E1[expert], K = first_E1[expert + 1] - first;
  if (K == 0 && accumulate) return;
  float* const c = c_EMN + (int64_t(expert) * M + row) * N + column;
  compute_plain_tile<T>({a_RM + first * M + row, M, true}, {b_RN + first * N + column, N, true},
                        min(kPlainSide, M - row), min(kPlainSide, N - column), K,
                        [&](int r, int col, float x) {
                          float& to = c[int64_t(r) * N + col];
                          to = accumulate ? to + x : x;
                        });
}

// Returns whether all rows are whole 16-byte chunks.
template <class T>
bool in_chunks(std::initializer_list<const void*> data, std::initializer_list<int64_t> lengths) {
  if (!Half<T> || !aligned(data)) return false;
  return std::all_of(lengths.begin(), lengths.end(), [](int64_t n) { return n % 8 == 0; });
}

template <class T>
void run_rows(const GroupedMatmul& a, CUstream_st* stream) {
  if constexpr (Half<T>)
    if (in_chunks<T>({a.a_RK.data, a.b_EKN.data, a.c_RN.data}, {a.K, a.N})) {
      const auto kernel =
          a.trans_b ? rows_in_tensor_cores<T, true> : rows_in_tensor_cores<T, false>;
      MT_LAUNCH(kernel, dim3(unsigned(div_up(a.N, kSide)), most_tiles(a.R, a.E, kSide)), kThreads,
                kStages * kStageBytes, stream, data<T>(a.a_RK), data<T>(a.b_EKN),
                data<int32_t>(a.first_E1), data<char>(a.c_RN), a.c_RN.dtype != DType::f32, int(a.N),
                int(a.K), int(a.E));
      return;
    }
  const dim3 grid(unsigned(div_up(a.N, kPlainSide)), most_tiles(a.R, a.E, kPlainSide));
  if (a.c_RN.dtype == DType::f32)
    MT_LAUNCH((plain_rows<T, float>), grid, kPlainThreads, 0, stream, data<T>(a.a_RK),
              data<T>(a.b_EKN), data<int32_t>(a.first_E1), data<float>(a.c_RN), int(a.N), int(a.K),
              int(a.E), a.trans_b);
  else
    MT_LAUNCH((plain_rows<T, T>), grid, kPlainThreads, 0, stream, data<T>(a.a_RK), data<T>(a.b_EKN),
              data<int32_t>(a.first_E1), data<T>(a.c_RN), int(a.N), int(a.K), int(a.E), a.trans_b);
}

template <class T>
void run_weights(const GroupedWeightGrad& a, CUstream_st* stream) {
  const auto grid = [&](int64_t side) {
    return dim3(unsigned(div_up(a.N, side)), unsigned(div_up(a.M, side)), unsigned(a.E));
  };
  if constexpr (Half<T>)
    if (in_chunks<T>({a.a_RM.data, a.b_RN.data, a.c_EMN.data}, {a.M, a.N})) {
      MT_LAUNCH(weights_in_tensor_cores<T>, grid(kSide), kThreads, kStages * kStageBytes, stream,
                data<T>(a.a_RM), data<T>(a.b_RN), data<int32_t>(a.first_E1), data<float>(a.c_EMN),
                int(a.M), int(a.N), a.accumulate);
      return;
    }
  MT_LAUNCH(plain_weights<T>, grid(kPlainSide), kPlainThreads, 0, stream, data<T>(a.a_RM),
            data<T>(a.b_RN), data<int32_t>(a.first_E1), data<float>(a.c_EMN), int(a.M), int(a.N),
            a.accumulate);
}

}  // namespace

void run(const GroupedMatmul& a, CUstream_st* stream) {
  if (a.R <= 0 || a.N <= 0) return;
  with_float(a.a_RK.dtype, [&]<class T>() { run_rows<T>(a, stream); });
}

void run(const GroupedWeightGrad& a, CUstream_st* stream) {
  if (a.E <= 0 || a.M <= 0 || a.N <= 0) return;
  with_float(a.a_RM.dtype, [&]<class T>() { run_weights<T>(a, stream); });
}

}  // namespace mtrain::kernels::cuda
