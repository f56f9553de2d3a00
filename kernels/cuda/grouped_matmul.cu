// mtrain's own kernels for the GEMMs of experts. Each serves all experts: a block finds the expert
// of its tile from the experts' first rows in device memory. The host need not know them. Tensor
// cores take 16-bit operands whose rows are full 16-byte chunks, and 8-bit operands, converted to
// 16 bits; a plain kernel takes all others.
#include "kernels/grouped_matmul.h"

#include "kernels/cuda/device/attention_mma.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/row_tile.h"
#include "kernels/cuda/grouped/grouped_engine.h"

namespace mtrain::kernels::cuda {
namespace {

// --- tensor cores: tiles of 128 x 128, 64 of the sum at once ---
constexpr int kSide = 128, kDepth = 64, kThreads = 256, kStages = 2;
// Blocks of a multiprocessor: while one waits for memory, the other computes. On earlier devices
// two blocks would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr int kBlocks = 2;
#else
constexpr int kBlocks = 1;
#endif
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

// An operand in shared memory. Its rows run along the summed dimension (tile (128, 64)), or across
// it (64, 128).
template <bool ACROSS>
using OperandTile = HalfTile<ACROSS ? kSide : kDepth>;

// Copies the part of the sum that starts at k. `x` is the operand's first element in this block's
// tile.
template <bool ACROSS, class T>
__device__ __forceinline__ void copy_operand(const OperandTile<ACROSS>& tile, const T* x,
                                             int64_t ld, int64_t side, int64_t k, int64_t K) {
  if constexpr (ACROSS)
    copy_tile<kDepth>(tile, x + k * ld, ld, K - k, side);
  else
    copy_tile<kSide>(tile, x + k, ld, side, K - k);
}

// Loads the operand a (16, 16) of the transpose of `tile`: columns starting at row0, rows starting
// at 16 k.
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

// Stores the warp's sums times `factor`; only `rows` rows and `columns` columns of the block's tile
// exist.
template <Half T>
__device__ __forceinline__ void put_tile(const PairRows<T>& c, const Sums& sum, int row0,
                                         int column0, int rows, int columns, bool add,
                                         float factor) {
  const int lane = int(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kWarpRows / 16; ++i)
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      const int row = row0 + 16 * i + lane / 4, column = column0 + 8 * j + lane % 4 * 2;
      const float(&x)[4] = sum[i][j];
      if (column >= columns) continue;
      if (row < rows) c.put(row, column, x[0] * factor, x[1] * factor, add);
      if (row + 8 < rows) c.put(row + 8, column, x[2] * factor, x[3] * factor, add);
    }
}

// The GEMM of one tile: only `rows` rows and `columns` columns of it exist, and K numbers are
// summed.
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
  const int warp = int(threadIdx.x) / kWarp;
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
  put_tile(p.c, sum, row0, column0, p.rows, p.columns, p.add, 1.0f);
}

template <Half T, bool TRANS_B>
__global__ void __launch_bounds__(kThreads, kBlocks)
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

// --- 8-bit operands in tensor cores: the same tiles, converted to fp16 ---

// A thread's part of the copy of a tile (ROWS, DIM). It loads first and stores later: the thread
// multiplies a different tile in between.
template <int ROWS, int DIM>
struct Float8Part {
  static constexpr int kChunks = DIM / 16, kCount = ROWS * kChunks / kThreads;
  uint4 words[kCount];

  // Loads rows of x; elements beyond `rows` and `columns` become 0.
  __device__ __forceinline__ void load(const uint8_t* x, int64_t ld, int64_t rows,
                                       int64_t columns) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int i = n * kThreads + int(threadIdx.x), r = i / kChunks, c = i % kChunks;
      words[n] =
          r < rows && c * 16 < columns ? load_words(x + r * ld + c * 16) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void store(const HalfTile<DIM>& tile, bool e5m2) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int i = n * kThreads + int(threadIdx.x), r = i / kChunks, c = i % kChunks;
      const uint2 x = halves(words[n].x, e5m2), y = halves(words[n].y, e5m2),
                  z = halves(words[n].z, e5m2), w = halves(words[n].w, e5m2);
      *reinterpret_cast<uint4*>(tile.chunk(r, 2 * c)) = make_uint4(x.x, x.y, y.x, y.y);
      *reinterpret_cast<uint4*>(tile.chunk(r, 2 * c + 1)) = make_uint4(z.x, z.y, w.x, w.y);
    }
  }

 private:
  // Returns four numbers as fp16. e5m2 is the upper half of fp16.
  static __device__ __forceinline__ uint2 halves(uint32_t four, bool e5m2) {
    if (e5m2) return make_uint2(__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424));
    return make_uint2(f16_of_e4m3(four & 0xffff), f16_of_e4m3(four >> 16));
  }
};

template <bool ACROSS>
using Float8OperandPart = Float8Part<ACROSS ? kDepth : kSide, ACROSS ? kSide : kDepth>;

// An 8-bit operand of a tile's GEMM, starting at its first element.
struct Float8Operand {
  const uint8_t* x;
  int64_t ld;
  bool e5m2;
  // Loads the part of the sum that starts at k.
  template <bool ACROSS>
  __device__ __forceinline__ void load(Float8OperandPart<ACROSS>& part, int64_t side, int64_t k,
                                       int64_t K) const {
    if constexpr (ACROSS)
      part.load(x + k * ld, ld, K - k, side);
    else
      part.load(x + k, ld, side, K - k);
  }
};

template <Half T>
struct Float8TileProduct {
  Float8Operand a, b;
  int rows, columns;
  int64_t K;
  PairRows<T> c;
  bool add;
  float factor;
};

template <Half T, bool A_ACROSS, bool B_ACROSS>
__device__ __forceinline__ void compute_float8_tile(const Float8TileProduct<T>& p) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const int warp = int(threadIdx.x) / kWarp;
  const int row0 = warp / 4 * kWarpRows, column0 = warp % 4 * kWarpColumns;
  Float8OperandPart<A_ACROSS> a;
  Float8OperandPart<B_ACROSS> b;
  const auto load = [&](int64_t k) {
    p.a.template load<A_ACROSS>(a, p.rows, k, p.K);
    p.b.template load<B_ACROSS>(b, p.columns, k, p.K);
  };
  Sums sum = {};
  if (p.K > 0) load(0);
  int stage = 0;
  for (int64_t k = 0; k < p.K; k += kDepth, stage ^= 1) {
    const OperandTile<A_ACROSS> a_tile{memory + stage * kStageBytes};
    const OperandTile<B_ACROSS> b_tile{memory + stage * kStageBytes + kStageBytes / 2};
    // Every thread has passed the last barrier. Therefore it has multiplied the previous contents
    // of this stage.
    a.store(a_tile, p.a.e5m2);
    b.store(b_tile, p.b.e5m2);
    __syncthreads();
    if (k + kDepth < p.K) load(k + kDepth);
    multiply_stage<f16, A_ACROSS, B_ACROSS>(sum, a_tile, b_tile, row0, column0);
  }
  put_tile(p.c, sum, row0, column0, p.rows, p.columns, p.add, p.factor);
}

// An 8-bit matrix of a launch, and its factor.
struct Float8Matrix {
  const uint8_t* x;
  const float* inverse;
  bool e5m2;
};

template <Half T, bool TRANS_B>
__global__ void __launch_bounds__(kThreads)
    float8_rows(Float8Matrix a, Float8Matrix b, const int32_t* first_E1, char* c_RN, bool half,
                int N, int K, int E) {
  const RowTile tile = find_tile<kSide>(first_E1, E, int(blockIdx.y));
  if (tile.expert < 0) return;
  const int column = int(blockIdx.x) * kSide;
  const uint8_t* const of_expert = b.x + int64_t(tile.expert) * K * N;
  compute_float8_tile<T, false, !TRANS_B>(
      {.a = {a.x + int64_t(tile.row) * K, K, a.e5m2},
       .b = {TRANS_B ? of_expert + int64_t(column) * K : of_expert + column, TRANS_B ? K : N,
             b.e5m2},
       .rows = min(kSide, tile.end - tile.row),
       .columns = min(kSide, N - column),
       .K = K,
       .c = {c_RN + (int64_t(tile.row) * N + column) * (half ? 2 : 4), N, half},
       .add = false,
       .factor = *a.inverse * *b.inverse});
}

__global__ void __launch_bounds__(kThreads)
    float8_weights(Float8Matrix a, Float8Matrix b, const int32_t* first_E1, float* c_EMN, int M,
                   int N, bool accumulate) {
  const int expert = int(blockIdx.z), row = int(blockIdx.y) * kSide;
  const int column = int(blockIdx.x) * kSide;
  const int64_t first = first_E1[expert], K = first_E1[expert + 1] - first;
  if (K == 0 && accumulate) return;
  float* const c = c_EMN + (int64_t(expert) * M + row) * N + column;
  compute_float8_tile<f16, true, true>({.a = {a.x + first * M + row, M, a.e5m2},
                                        .b = {b.x + first * N + column, N, b.e5m2},
                                        .rows = min(kSide, M - row),
                                        .columns = min(kSide, N - column),
                                        .K = K,
                                        .c = {reinterpret_cast<char*>(c), N, false},
                                        .add = accumulate,
                                        .factor = *a.inverse * *b.inverse});
}

// --- the plain kernel: tiles of 32 x 32, a thread has 2 x 2 ---
constexpr int kPlainSide = 32, kPlainThreads = 256;

// Element (i, k) of an operand is at i * ld + k, or at k * ld + i if its rows run across the sum.
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
      // Neighbouring threads read neighbouring addresses.
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

// Returns whether all rows consist of full 16-byte chunks.
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
      MT_LAUNCH(kernel, dim3(unsigned(div_up(a.N, kSide)), max_tiles(a.R, a.E, kSide)), kThreads,
                kStages * kStageBytes, stream, data<T>(a.a_RK), data<T>(a.b_EKN),
                data<int32_t>(a.first_E1), data<char>(a.c_RN), a.c_RN.dtype != DType::f32, int(a.N),
                int(a.K), int(a.E));
      return;
    }
  const dim3 grid(unsigned(div_up(a.N, kPlainSide)), max_tiles(a.R, a.E, kPlainSide));
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

Float8Matrix float8_matrix(const ConstSpan& x, const ConstSpan& inverse) {
  return {data<uint8_t>(x), data<float>(inverse), x.dtype == DType::f8e5m2};
}

void run_float8(const GroupedMatmul& a, CUstream_st* stream) {
  const auto launch_with = [&]<Half T>() {
    const auto kernel = a.trans_b ? float8_rows<T, true> : float8_rows<T, false>;
    MT_LAUNCH(kernel, dim3(unsigned(div_up(a.N, kSide)), max_tiles(a.R, a.E, kSide)), kThreads,
              kStages * kStageBytes, stream, float8_matrix(a.a_RK, a.a_inverse),
              float8_matrix(a.b_EKN, a.b_inverse), data<int32_t>(a.first_E1), data<char>(a.c_RN),
              a.c_RN.dtype != DType::f32, int(a.N), int(a.K), int(a.E));
  };
  if (a.c_RN.dtype == DType::f16)
    launch_with.template operator()<f16>();
  else
    launch_with.template operator()<bf16>();
}

void run_float8(const GroupedWeightGrad& a, CUstream_st* stream) {
  MT_LAUNCH(float8_weights,
            dim3(unsigned(div_up(a.N, kSide)), unsigned(div_up(a.M, kSide)), unsigned(a.E)),
            kThreads, kStages * kStageBytes, stream, float8_matrix(a.a_RM, a.a_inverse),
            float8_matrix(a.b_RN, a.b_inverse), data<int32_t>(a.first_E1), data<float>(a.c_EMN),
            int(a.M), int(a.N), a.accumulate);
}

}  // namespace

void own_grouped_gemm(const GroupedMatmul& a, CUstream_st* stream) {
  if (is_float8(a)) return run_float8(a, stream);
  with_float(a.a_RK.dtype, [&]<class T>() { run_rows<T>(a, stream); });
}

void own_grouped_gemm(const GroupedWeightGrad& a, CUstream_st* stream) {
  if (is_float8(a)) return run_float8(a, stream);
  with_float(a.a_RM.dtype, [&]<class T>() { run_weights<T>(a, stream); });
}

void run(const GroupedMatmul& a, CUstream_st* stream) {
  if (a.R <= 0 || a.N <= 0) return;
  if (a.own_kernel || !grouped_by_cutlass(a, stream)) own_grouped_gemm(a, stream);
}

void run(const GroupedWeightGrad& a, CUstream_st* stream) {
  if (a.E <= 0 || a.M <= 0 || a.N <= 0) return;
  if (a.own_kernel || !grouped_by_cutlass(a, stream)) own_grouped_gemm(a, stream);
}

}  // namespace mtrain::kernels::cuda
