#include "kernels/fp8_blocks.h"

#include "kernels/cuda/device/float8.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kMaxBlocks = 2048;
// A block of threads quantizes tiles; a thread has a segment of a tile's column.
constexpr int kTile = 128, kSegment = 32, kSegments = kTile / kSegment;
static_assert(kTile * kSegments == kThreads);
constexpr int kChunks = kTile / 16;  // 16-byte accesses to a column of the tile

// Returns the smallest e with amax <= largest 2^e, as the CPU's kernel does.
__device__ __forceinline__ int exponent_of(float amax, float largest) {
  if (!(amax > 0)) return 0;
  const uint32_t bits = __float_as_uint(amax / largest);
  return max(int(bits >> 23) - 127 + ((bits & 0x7fffff) != 0 ? 1 : 0), -126);
}
__device__ __forceinline__ float power_of_2(int e) {
  return __uint_as_float(uint32_t(e + 127) << 23);
}

// The 8-bit matrix (R, K) that is written, and the inverses of its scales. block_scale_index() has
// their layouts.
template <ScaleBlocks BLOCKS>
struct Inverses {
  void* data;
  int64_t R, K;

  __device__ __forceinline__ void put(int64_t at, int e) const {
    if constexpr (BLOCKS == ScaleBlocks::rows_32)
      static_cast<uint8_t*>(data)[at] = uint8_t(e + 127);
    else
      static_cast<float*>(data)[at] = power_of_2(e);
  }
  // Writes the inverse of a row's block in the tile that begins at row `row0` and element `k0`;
  // `row` and `block` are indices within the tile. There is also memory for rows and blocks beyond
  // the matrix.
  __device__ __forceinline__ void put_row(int64_t row0, int64_t k0, int row, int block,
                                          int e) const {
    if constexpr (BLOCKS == ScaleBlocks::rows_128) {
      const int64_t rows = (R + 3) / 4 * 4;
      if (row0 + row < rows) put(k0 / kTile * rows + row0 + row, e);
    } else {
      const int64_t tile = row0 / kTile * ((K + kTile - 1) / kTile) + k0 / kTile;
      put(tile * (kTile * kSegments) + row % 32 * 16 + row / 32 * 4 + block, e);
    }
  }
  // Writes the inverse of a full tile; the last tile of a row also writes those beyond it.
  __device__ __forceinline__ void put_square(int64_t row0, int64_t k0, int e) const {
    const int64_t blocks = (K + kTile - 1) / kTile, stride = (blocks + 3) / 4 * 4;
    const int64_t begin = row0 / kTile * stride;
    put(begin + k0 / kTile, e);
    if (k0 / kTile == blocks - 1)
      for (int64_t i = blocks; i < stride; ++i) put(begin + i, 0);
  }
};

template <class T>
struct Tile {
  const T* x;
  int64_t rows, columns, row0, column0;
  // Element (r, c) of the tile, or 0 outside of the tensor.
  __device__ __forceinline__ float at(int r, int c) const {
    return row0 + r < rows && column0 + c < columns
               ? load_one(x + (row0 + r) * columns + column0 + c)
               : 0.0f;
  }
  // Loads the four elements of row r that belong to a lane. They are 32 apart: a block of 32
  // elements has one element in each lane.
  __device__ __forceinline__ void row(int r, int lane, float (&v)[kSegments]) const {
#pragma unroll
    for (int j = 0; j < kSegments; ++j) v[j] = at(r, lane + kWarp * j);
  }
  __device__ __forceinline__ float amax() const {
    float most = 0;
    for (int r = int(threadIdx.x) / kWarp; r < kTile; r += kWarps) {
      float v[kSegments];
      row(r, int(threadIdx.x) % kWarp, v);
#pragma unroll
      for (int j = 0; j < kSegments; ++j) most = fmaxf(most, finite_size(v[j]));
    }
    return block_max<kWarps>(most);
  }
};

// A warp writes full rows of the tile. `e` is the exponent of a square tile.
template <class Y, ScaleBlocks BLOCKS, class T>
__device__ __forceinline__ void write_rows(const Tile<T>& tile, uint8_t* y,
                                           const Inverses<BLOCKS>& inverses, float largest, int e) {
  const int lane = int(threadIdx.x) % kWarp;
  for (int r = int(threadIdx.x) / kWarp; r < kTile; r += kWarps) {
    float v[kSegments], most[kSegments];
    tile.row(r, lane, v);
    int exponent[kSegments];
    if constexpr (BLOCKS == ScaleBlocks::square_128) {
#pragma unroll
      for (int j = 0; j < kSegments; ++j) exponent[j] = e;
    } else {
#pragma unroll
      for (int j = 0; j < kSegments; ++j) most[j] = warp_max(finite_size(v[j]));
      const float whole = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
#pragma unroll
      for (int j = 0; j < kSegments; ++j)
        exponent[j] = exponent_of(BLOCKS == ScaleBlocks::rows_128 ? whole : most[j], largest);
      if (BLOCKS == ScaleBlocks::rows_128 && lane == 0)
        inverses.put_row(tile.row0, tile.column0, r, 0, exponent[0]);
      if (BLOCKS == ScaleBlocks::rows_32 && lane == 0)
#pragma unroll
        for (int j = 0; j < kSegments; ++j)
          inverses.put_row(tile.row0, tile.column0, r, j, exponent[j]);
    }
    if (tile.row0 + r >= tile.rows) continue;
    uint8_t* const to = y + (tile.row0 + r) * tile.columns + tile.column0;
#pragma unroll
    for (int j = 0; j < kSegments; ++j)
      if (const int c = lane + kWarp * j; tile.column0 + c < tile.columns)
        to[c] = uint8_t(pack_float8<Y>(scaled(v[j], power_of_2(-exponent[j])), 0.0f));
  }
}

// A thread has 32 rows of one column, and reads them twice, since their floats would fill its
// registers. The tile is then in shared memory as [column][16 rows]. A column's eight 16-byte
// chunks are permuted by the column: the threads of a store then use different banks.
template <class Y, ScaleBlocks BLOCKS, class T>
__device__ __forceinline__ void write_columns(const Tile<T>& tile, uint8_t* transposed,
                                              int64_t stride, const Inverses<BLOCKS>& inverses,
                                              float largest, int e) {
  __shared__ uint4 bytes[kTile * kChunks];
  __shared__ float maxima[kSegments * kTile];
  const auto place = [](int column, int chunk) { return column * kChunks + (chunk ^ column % 8); };
  const int thread = int(threadIdx.x), c = thread % kTile, segment = thread / kTile;
  // The number of rows within the tensor, and their first element.
  const int64_t row = tile.row0 + segment * kSegment, left = tile.rows - row;
  const int filled =
      tile.column0 + c >= tile.columns || left <= 0 ? 0 : int(left < kSegment ? left : kSegment);
  const T* const from = tile.x + row * tile.columns + tile.column0 + c;
  const int columns = int(tile.columns);
  if constexpr (BLOCKS != ScaleBlocks::square_128) {
    float most = 0;
#pragma unroll 8
    for (int k = 0; k < filled; ++k) most = fmaxf(most, finite_size(load_one(from + k * columns)));
    if constexpr (BLOCKS == ScaleBlocks::rows_128) {
      maxima[segment * kTile + c] = most;
      __syncthreads();
#pragma unroll
      for (int s = 0; s < kSegments; ++s) most = fmaxf(most, maxima[s * kTile + c]);
    }
    e = exponent_of(most, largest);
    if (BLOCKS == ScaleBlocks::rows_32 || segment == 0)
      inverses.put_row(tile.column0, tile.row0, c, segment, e);
  }
  const float scale = power_of_2(-e);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = 16 * half + 4 * w + j;
        v[j] = k < filled ? scaled(load_one(from + k * columns), scale) : 0.0f;
      }
      words[w] = uint32_t(pack_float8<Y>(v[0], v[1])) | uint32_t(pack_float8<Y>(v[2], v[3])) << 16;
    }
    bytes[place(c, 2 * segment + half)] = make_uint4(words[0], words[1], words[2], words[3]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile * kChunks / kThreads; ++i) {
    const int column = thread / kChunks + i * (kThreads / kChunks), chunk = thread % kChunks;
    if (tile.column0 + column < tile.columns && tile.row0 + 16 * chunk < stride)
      store_words(transposed + (tile.column0 + column) * stride + tile.row0 + 16 * chunk,
                  bytes[place(column, chunk)]);
  }
  __syncthreads();  // both arrays may be written again
}

// Block b takes the tiles b, b + gridDim.x, ....
template <class Y, ScaleBlocks BLOCKS, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_blocks(const T* x, uint8_t* y, void* inverse, uint8_t* transposed,
                    void* transposed_inverse, int64_t rows, int64_t columns, int64_t stride,
                    float largest) {
  const Inverses<BLOCKS> inverses{inverse, rows, columns},
      transposed_inverses{transposed_inverse, columns, stride};
  const int64_t max_rows = transposed && stride > rows ? stride : rows;
  const unsigned across = unsigned((columns + kTile - 1) / kTile),
                 tiles = across * unsigned((max_rows + kTile - 1) / kTile);
  for (unsigned number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Tile<T> tile{x, rows, columns, int64_t(number / across) * kTile,
                       int64_t(number % across) * kTile};
    int e = 0;
    if constexpr (BLOCKS == ScaleBlocks::square_128) {
      e = exponent_of(tile.amax(), largest);
      if (threadIdx.x == 0 && y && tile.row0 < rows)
        inverses.put_square(tile.row0, tile.column0, e);
      if (threadIdx.x == 0 && transposed)
        transposed_inverses.put_square(tile.column0, tile.row0, e);
    }
    if (y && tile.row0 < rows) write_rows<Y, BLOCKS>(tile, y, inverses, largest, e);
    if (transposed)
      write_columns<Y, BLOCKS>(tile, transposed, stride, transposed_inverses, largest, e);
  }
}

// A part of a matrix (R, K) in row-major order, from element `begin` on, under square blocks.
struct Part {
  int64_t begin, count, K, first_row, segments, across;

  __host__ __device__ int64_t stride() const { return (across + 3) / 4 * 4; }  // of inverses
};
Part part_of(int64_t begin, int64_t count, int64_t K) {
  const int64_t first = begin / K, rows = count == 0 ? 0 : (begin + count - 1) / K - first + 1,
                across = div_up(K, kTile);
  return {begin, count, K, first, rows * across, across};
}
// A warp takes the part's elements in one row of a block: f(place of the block's scale, the lane's
// four places in the part, whether they lie in it).
template <class F>
__device__ __forceinline__ void for_segments(const Part& p, const F& f) {
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t warps = int64_t(gridDim.x) * kWarps;
  for (int64_t s = int64_t(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp; s < p.segments;
       s += warps) {
    const int64_t row = p.first_row + s / p.across, block = s % p.across;
    int64_t at[kSegments];
    bool inside[kSegments];
#pragma unroll
    for (int j = 0; j < kSegments; ++j) {
      const int64_t column = block * kTile + lane + kWarp * j;
      at[j] = row * p.K + column - p.begin;
      inside[j] = column < p.K && at[j] >= 0 && at[j] < p.count;
    }
    f(row / kTile * p.stride() + block, at, inside);
  }
}

// The maxima are not negative, so that their order is that of their bits as integers.
template <class T>
__global__ void __launch_bounds__(kThreads) amax_of_part(const T* x, float* amax, Part part) {
  for_segments(part, [&](int64_t block, const auto& at, const auto& inside) {
    float most = 0;
#pragma unroll
    for (int j = 0; j < kSegments; ++j)
      if (inside[j]) most = fmaxf(most, finite_size(load_one(x + at[j])));
    most = warp_max(most);
    if (int(threadIdx.x) % kWarp == 0 && most > 0)
      atomicMax(reinterpret_cast<int*>(amax + block), __float_as_int(most));
  });
}

__global__ void __launch_bounds__(kThreads)
    inverses_of_amax(float* inverse, int64_t count, float largest) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + int(threadIdx.x);
  if (i < count) inverse[i] = power_of_2(exponent_of(inverse[i], largest));
}

template <class Y, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_part(const T* x, const float* inverse, uint8_t* y, Part part) {
  for_segments(part, [&](int64_t block, const auto& at, const auto& inside) {
    const float scale = 1.0f / inverse[block];  // exact
#pragma unroll
    for (int j = 0; j < kSegments; ++j)
      if (inside[j]) y[at[j]] = uint8_t(pack_float8<Y>(scaled(load_one(x + at[j]), scale), 0.0f));
  });
}

// from: (rows, columns) blocks, with rows of from_stride; to: (columns, rows), with 1 after them.
__global__ void __launch_bounds__(kThreads)
    transpose_inverses(const float* from, int64_t rows, int64_t columns, int64_t from_stride,
                       float* to, int64_t to_stride) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + int(threadIdx.x);
  if (i >= columns * to_stride) return;
  const int64_t column = i / to_stride, row = i % to_stride;
  to[i] = row < rows ? from[row * from_stride + column] : 1.0f;
}

template <class F>
void with_blocks(ScaleBlocks blocks, const F& f) {
  if (blocks == ScaleBlocks::rows_128) return f.template operator()<ScaleBlocks::rows_128>();
  if (blocks == ScaleBlocks::rows_32) return f.template operator()<ScaleBlocks::rows_32>();
  f.template operator()<ScaleBlocks::square_128>();
}

}  // namespace

void run(const QuantizeBlocks& a, CUstream_st* stream) {
  const int64_t rows = a.y_NT && a.stride > a.T ? a.stride : a.T;
  if (a.N == 0 || rows == 0) return;
  const DType type = a.y_TN ? a.y_TN.dtype : a.y_NT.dtype;
  const unsigned blocks = blocks_for(div_up(a.N, kTile) * div_up(rows, kTile), 1, kMaxBlocks);
  with_float8(type, [&]<class Y>() {
    with_float(a.x_TN.dtype, [&]<class T>() {
      with_blocks(a.blocks, [&]<ScaleBlocks BLOCKS>() {
        MT_LAUNCH((quantize_blocks<Y, BLOCKS, T>), blocks, kThreads, 0, stream, data<T>(a.x_TN),
                  data<uint8_t>(a.y_TN), a.inverse_TN.data, data<uint8_t>(a.y_NT),
                  a.inverse_NT.data, a.T, a.N, a.stride, largest_float8(type));
      });
    });
  });
}

void run(const AmaxOfPart& a, CUstream_st* stream) {
  const Part part = part_of(a.begin, a.x.count, a.K);
  if (part.segments == 0) return;
  with_float(a.x.dtype, [&]<class T>() {
    MT_LAUNCH(amax_of_part<T>, blocks_for(part.segments, kWarps, kMaxBlocks), kThreads, 0, stream,
              data<T>(a.x), data<float>(a.amax), part);
  });
}

void run(const InversesOfAmax& a, CUstream_st* stream) {
  if (a.inverse.count == 0) return;
  MT_LAUNCH(inverses_of_amax, unsigned(div_up(a.inverse.count, kThreads)), kThreads, 0, stream,
            data<float>(a.inverse), a.inverse.count, largest_float8(a.type));
}

void run(const QuantizePart& a, CUstream_st* stream) {
  const Part part = part_of(a.begin, a.x.count, a.K);
  if (part.segments == 0) return;
  with_float8(a.y.dtype, [&]<class Y>() {
    with_float(a.x.dtype, [&]<class T>() {
      MT_LAUNCH((quantize_part<Y, T>), blocks_for(part.segments, kWarps, kMaxBlocks), kThreads, 0,
                stream, data<T>(a.x), data<float>(a.inverse), data<uint8_t>(a.y), part);
    });
  });
}

void run(const TransposeInverses& a, CUstream_st* stream) {
  const int64_t rows = div_up(a.T, kTile), columns = div_up(a.N, kTile),
                to_stride = div_up(rows, 4) * 4;
  if (rows == 0 || columns == 0) return;
  MT_LAUNCH(transpose_inverses, unsigned(div_up(columns * to_stride, kThreads)), kThreads, 0,
            stream, data<float>(a.inverse_TN), rows, columns, div_up(columns, 4) * 4,
            data<float>(a.inverse_NT), to_stride);
}

}  // namespace mtrain::kernels::cuda
