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

// A block's shared memory, all of it dynamic: together it is more than a launch may have without
// asking.
template <class T>
struct SharedMemory {
  T tile[kTile * kTile];
  uint4 bytes[kTile * kChunks];     // the tile in 8 bits, transposed
  float maxima[kSegments * kTile];  // of the segments of columns
};

// Returns the largest x of a group of WIDTH neighbouring lanes, to each of them.
template <int WIDTH>
__device__ __forceinline__ float max_of_lanes(float x) {
#pragma unroll
  for (int i = WIDTH / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}

// A tile in shared memory, with zeros outside of the tensor. Every later access is to this copy.
template <class T>
struct Tile {
  T* copy;  // (kTile, kTile)
  int64_t rows, columns, row0, column0;

  // Loads 16 bytes at a time if VECTORS. All threads call this.
  template <bool VECTORS>
  __device__ __forceinline__ void fill(const T* x) const {
    constexpr int N = VECTORS ? kVector<T> : 1, kAcross = kTile / N;
    constexpr int kUnroll = VECTORS ? kTile * kAcross / kThreads : 8;
#pragma unroll(kUnroll)
    for (int i = int(threadIdx.x); i < kTile * kAcross; i += kThreads) {
      const int r = i / kAcross, c = i % kAcross * N;
      const bool inside = row0 + r < rows && column0 + c < columns;
      const T* const from = x + (row0 + r) * columns + column0 + c;
      if constexpr (VECTORS)
        *reinterpret_cast<uint4*>(copy + r * kTile + c) =
            inside ? load_words(from) : make_uint4(0, 0, 0, 0);
      else
        store_one(copy + r * kTile + c, inside ? load_one(from) : 0.0f);
    }
    __syncthreads();
  }
  // Loads the four elements of row r that belong to a lane. A block of 32 elements has 8 lanes.
  __device__ __forceinline__ void row(int r, int lane, float (&v)[kSegments]) const {
    load<kSegments>(copy + r * kTile + kSegments * lane, v);
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

// Packs four numbers; the first goes into the low byte.
template <class Y>
__device__ __forceinline__ uint32_t pack_four(const float (&v)[4]) {
  return uint32_t(pack_float8<Y>(v[0], v[1])) | uint32_t(pack_float8<Y>(v[2], v[3])) << 16;
}

// A warp writes full rows of the tile, 4 bytes of a lane at once if VECTORS. `e` is the exponent of
// a square tile.
template <class Y, bool VECTORS, ScaleBlocks BLOCKS, class T>
__device__ __forceinline__ void write_rows(const Tile<T>& tile, uint8_t* y,
                                           const Inverses<BLOCKS>& inverses, float largest, int e) {
  constexpr int kLanes = BLOCKS == ScaleBlocks::rows_32 ? kWarp / kSegments : kWarp;  // of a block
  const int lane = int(threadIdx.x) % kWarp, c = kSegments * lane;
  for (int r = int(threadIdx.x) / kWarp; r < kTile; r += kWarps) {
    float v[kSegments];
    tile.row(r, lane, v);
    if constexpr (BLOCKS != ScaleBlocks::square_128) {
      float most = 0;
#pragma unroll
      for (int j = 0; j < kSegments; ++j) most = fmaxf(most, finite_size(v[j]));
      e = exponent_of(max_of_lanes<kLanes>(most), largest);
      if (lane % kLanes == 0) inverses.put_row(tile.row0, tile.column0, r, lane / kLanes, e);
    }
    if (tile.row0 + r >= tile.rows || tile.column0 + c >= tile.columns) continue;
    const float scale = power_of_2(-e);
#pragma unroll
    for (int j = 0; j < kSegments; ++j) v[j] = scaled(v[j], scale);
    const uint32_t four = pack_four<Y>(v);
    uint8_t* const to = y + (tile.row0 + r) * tile.columns + tile.column0 + c;
    if constexpr (VECTORS) {
      *reinterpret_cast<uint32_t*>(to) = four;
    } else {
#pragma unroll
      for (int j = 0; j < kSegments; ++j)
        if (tile.column0 + c + j < tile.columns) to[j] = uint8_t(four >> 8 * j);
    }
  }
}

// A thread has 32 rows of one column, and reads them twice, since their floats would fill its
// registers. The 8-bit tile is then in shared memory as [column][16 rows]. A column's eight 16-byte
// chunks are permuted by the column: the threads of a store then use different banks.
template <class Y, ScaleBlocks BLOCKS, class T>
__device__ __forceinline__ void write_columns(const Tile<T>& tile, uint8_t* transposed,
                                              int64_t stride, const Inverses<BLOCKS>& inverses,
                                              float largest, int e) {
  auto& [numbers, bytes, maxima] = *dynamic_shared<SharedMemory<T>>();
  const auto place = [](int column, int chunk) { return column * kChunks + (chunk ^ column % 8); };
  const int thread = int(threadIdx.x), c = thread % kTile, segment = thread / kTile;
  const T* const from = numbers + segment * kSegment * kTile + c;
  if constexpr (BLOCKS != ScaleBlocks::square_128) {
    float most = 0;
#pragma unroll 8
    for (int k = 0; k < kSegment; ++k) most = fmaxf(most, finite_size(load_one(from + k * kTile)));
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
      for (int j = 0; j < 4; ++j)
        v[j] = scaled(load_one(from + (16 * half + 4 * w + j) * kTile), scale);
      words[w] = pack_four<Y>(v);
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
}

// Without a bound on blocks, the compiler spills for compute capability 8 to have two of them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MT_TILE_BOUNDS __launch_bounds__(kThreads, 1)
#else
#define MT_TILE_BOUNDS __launch_bounds__(kThreads)
#endif

// Block b takes the tiles b, b + gridDim.x, .... VECTORS: rows of x and y have addresses for
// 16-byte loads and 4-byte stores.
template <class Y, ScaleBlocks BLOCKS, bool VECTORS, class T>
__global__ void MT_TILE_BOUNDS quantize_blocks(const T* x, uint8_t* y, void* inverse,
                                               uint8_t* transposed, void* transposed_inverse,
                                               int64_t rows, int64_t columns, int64_t stride,
                                               float largest) {
  wait_for_previous_kernel();
  const Inverses<BLOCKS> inverses{inverse, rows, columns},
      transposed_inverses{transposed_inverse, columns, stride};
  const int64_t max_rows = transposed && stride > rows ? stride : rows;
  const unsigned across = unsigned((columns + kTile - 1) / kTile),
                 tiles = across * unsigned((max_rows + kTile - 1) / kTile);
  for (unsigned number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Tile<T> tile{dynamic_shared<SharedMemory<T>>()->tile, rows, columns,
                       int64_t(number / across) * kTile, int64_t(number % across) * kTile};
    tile.template fill<VECTORS>(x);
    int e = 0;
    if constexpr (BLOCKS == ScaleBlocks::square_128) {
      e = exponent_of(tile.amax(), largest);
      if (threadIdx.x == 0 && y && tile.row0 < rows)
        inverses.put_square(tile.row0, tile.column0, e);
      if (threadIdx.x == 0 && transposed)
        transposed_inverses.put_square(tile.column0, tile.row0, e);
    }
    if (y && tile.row0 < rows) write_rows<Y, VECTORS>(tile, y, inverses, largest, e);
    if (transposed)
      write_columns<Y, BLOCKS>(tile, transposed, stride, transposed_inverses, largest, e);
    __syncthreads();  // shared memory may be written again
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
// four places in the part, whether they lie in it). The four are neighbours, all inside or none, if
// VECTORS.
template <bool VECTORS, class F>
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
      const int64_t column = block * kTile + (VECTORS ? kSegments * lane + j : lane + kWarp * j);
      at[j] = row * p.K + column - p.begin;
      inside[j] = column < p.K && at[j] >= 0 && at[j] < p.count;
    }
    f(row / kTile * p.stride() + block, at, inside);
  }
}

// Elements outside of the part become 0.
template <bool VECTORS, class T>
__device__ __forceinline__ void load_four(const T* x, const int64_t (&at)[kSegments],
                                          const bool (&inside)[kSegments], float (&v)[kSegments]) {
#pragma unroll
  for (int j = 0; j < kSegments; ++j) v[j] = !VECTORS && inside[j] ? load_one(x + at[j]) : 0.0f;
  if (VECTORS && inside[0]) load<kSegments>(x + at[0], v);
}

// The maxima are not negative, so that their order is that of their bits as integers.
template <bool VECTORS, class T>
__global__ void __launch_bounds__(kThreads) amax_of_part(const T* x, float* amax, Part part) {
  wait_for_previous_kernel();
  for_segments<VECTORS>(part, [&](int64_t block, const auto& at, const auto& inside) {
    float v[kSegments], most = 0;
    load_four<VECTORS>(x, at, inside, v);
#pragma unroll
    for (int j = 0; j < kSegments; ++j) most = fmaxf(most, finite_size(v[j]));
    most = warp_max(most);
    if (int(threadIdx.x) % kWarp == 0 && most > 0)
      atomicMax(reinterpret_cast<int*>(amax + block), int(__float_as_uint(most)));
  });
}

__global__ void __launch_bounds__(kThreads)
    inverses_of_amax(float* inverse, int64_t count, float largest) {
  wait_for_previous_kernel();
  const int64_t i = int64_t(blockIdx.x) * kThreads + int(threadIdx.x);
  if (i < count) inverse[i] = power_of_2(exponent_of(inverse[i], largest));
}

template <class Y, bool VECTORS, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_part(const T* x, const float* inverse, uint8_t* y, Part part) {
  wait_for_previous_kernel();
  for_segments<VECTORS>(part, [&](int64_t block, const auto& at, const auto& inside) {
    const float scale = 1.0f / inverse[block];  // exact
    float v[kSegments];
    load_four<VECTORS>(x, at, inside, v);
#pragma unroll
    for (int j = 0; j < kSegments; ++j) v[j] = scaled(v[j], scale);
    const uint32_t four = pack_four<Y>(v);
    if constexpr (VECTORS) {
      if (inside[0]) *reinterpret_cast<uint32_t*>(y + at[0]) = four;
    } else {
#pragma unroll
      for (int j = 0; j < kSegments; ++j)
        if (inside[j]) y[at[j]] = uint8_t(four >> 8 * j);
    }
  });
}

// from: (rows, columns) blocks, with rows of from_stride; to: (columns, rows), with 1 after them.
__global__ void __launch_bounds__(kThreads)
    transpose_inverses(const float* from, int64_t rows, int64_t columns, int64_t from_stride,
                       float* to, int64_t to_stride) {
  wait_for_previous_kernel();
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

template <class F>
void with_vectors(bool vectors, const F& f) {
  vectors ? f.template operator()<true>() : f.template operator()<false>();
}
// Returns whether four neighbours that begin at a multiple of 4 of the matrix are one access.
bool part_has_vectors(const ConstSpan& x, const void* y, int64_t begin, int64_t K) {
  return begin % kSegments == 0 && K % kSegments == 0 && x.count % kSegments == 0 &&
         aligned({x.data, y});
}

}  // namespace

void run(const QuantizeBlocks& a, CUstream_st* stream) {
  const int64_t rows = a.y_NT && a.stride > a.T ? a.stride : a.T;
  if (a.N == 0 || rows == 0) return;
  const DType type = a.y_TN ? a.y_TN.dtype : a.y_NT.dtype;
  const unsigned blocks = blocks_for(div_up(a.N, kTile) * div_up(rows, kTile), 1, kMaxBlocks);
  with_float8(type, [&]<class Y>() {
    with_float(a.x_TN.dtype, [&]<class T>() {
      const bool vectors = aligned({a.x_TN.data, a.y_TN.data}) && a.N % kVector<T> == 0;
      with_blocks(a.blocks, [&]<ScaleBlocks BLOCKS>() {
        with_vectors(vectors, [&]<bool VECTORS>() {
          MT_LAUNCH_DEPENDENT((quantize_blocks<Y, BLOCKS, VECTORS, T>), blocks, kThreads,
                              sizeof(SharedMemory<T>), stream, data<T>(a.x_TN),
                              data<uint8_t>(a.y_TN), a.inverse_TN.data, data<uint8_t>(a.y_NT),
                              a.inverse_NT.data, a.T, a.N, a.stride, largest_float8(type));
        });
      });
    });
  });
}

void run(const AmaxOfPart& a, CUstream_st* stream) {
  const Part part = part_of(a.begin, a.x.count, a.K);
  if (part.segments == 0) return;
  with_float(a.x.dtype, [&]<class T>() {
    with_vectors(part_has_vectors(a.x, nullptr, a.begin, a.K), [&]<bool VECTORS>() {
      MT_LAUNCH_DEPENDENT((amax_of_part<VECTORS, T>), blocks_for(part.segments, kWarps, kMaxBlocks),
                          kThreads, 0, stream, data<T>(a.x), data<float>(a.amax), part);
    });
  });
}

void run(const InversesOfAmax& a, CUstream_st* stream) {
  if (a.inverse.count == 0) return;
  MT_LAUNCH_DEPENDENT(inverses_of_amax, unsigned(div_up(a.inverse.count, kThreads)), kThreads, 0,
                      stream, data<float>(a.inverse), a.inverse.count, largest_float8(a.type));
}

void run(const QuantizePart& a, CUstream_st* stream) {
  const Part part = part_of(a.begin, a.x.count, a.K);
  if (part.segments == 0) return;
  with_float8(a.y.dtype, [&]<class Y>() {
    with_float(a.x.dtype, [&]<class T>() {
      with_vectors(part_has_vectors(a.x, a.y.data, a.begin, a.K), [&]<bool VECTORS>() {
        MT_LAUNCH_DEPENDENT((quantize_part<Y, VECTORS, T>),
                            blocks_for(part.segments, kWarps, kMaxBlocks), kThreads, 0, stream,
                            data<T>(a.x), data<float>(a.inverse), data<uint8_t>(a.y), part);
      });
    });
  });
}

void run(const TransposeInverses& a, CUstream_st* stream) {
  const int64_t rows = div_up(a.T, kTile), columns = div_up(a.N, kTile),
                to_stride = div_up(rows, 4) * 4;
  if (rows == 0 || columns == 0) return;
  MT_LAUNCH_DEPENDENT(transpose_inverses, unsigned(div_up(columns * to_stride, kThreads)), kThreads,
                      0, stream, data<float>(a.inverse_TN), rows, columns, div_up(columns, 4) * 4,
                      data<float>(a.inverse_NT), to_stride);
}

}  // namespace mtrain::kernels::cuda
