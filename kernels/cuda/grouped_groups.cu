// Prepares the grouped GEMMs of CUTLASS, and compares their results with those of mtrain's kernels.
#include "kernels/cuda/device/float8.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/row_tile.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/grouped/compare_rows.h"
#include "kernels/cuda/grouped/groups.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__global__ void __launch_bounds__(kThreads)
    fill(GroupArrays to, float* alpha, GroupsOf all, const int32_t* first_E1,
         const float* a_inverse, const float* b_inverse) {
  const int e = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (e == 0) *alpha = a_inverse ? *a_inverse * *b_inverse : 1.0f;
  if (e >= to.groups) return;
  const Group g = group_of(all, first_E1[e], first_E1[e + 1], e);
  to.shape[e] = g.shape;
  to.a[e] = g.a, to.b[e] = g.b, to.c[e] = g.c;
  to.a_stride[e] = g.a_stride, to.b_stride[e] = g.b_stride, to.c_stride[e] = g.c_stride;
}

// A tile of 128 rows of a group and 128 columns. A thread has a patch of 4 rows (a word of the
// transpose) and 16 columns (one load).
constexpr int kTile = 128, kPatchRows = 4, kPatchColumns = 16;
static_assert(kTile * kTile == kThreads * kPatchRows * kPatchColumns);

// The tile is in shared memory as [column][16 rows]; the chunks of a column are permuted by the
// column's eighth of the tile, so writes and reads access every bank once.
__global__ void __launch_bounds__(kThreads)
    transpose(const uint8_t* x, const int32_t* first_E1, int64_t group_rows, uint8_t* transposed,
              int groups, int64_t columns) {
  constexpr int kAcross = kTile / kPatchColumns, kChunks = kTile / 16;
  __shared__ uint4 tile[kTile * kChunks];
  uint32_t* const words = reinterpret_cast<uint32_t*>(tile);
  const auto place = [](int column, int chunk) {
    return column * kChunks + (chunk ^ column / kPatchColumns);
  };
  int64_t group = 0, row0 = 0, first = 0, end = 0;
  if (first_E1) {
    const RowTile found = find_tile<kTile>(first_E1, groups, int(blockIdx.y));
    if (found.expert < 0) return;
    group = found.expert, row0 = found.row, first = first_E1[group], end = found.end;
  } else {
    const int64_t tiles = (group_rows + kTile - 1) / kTile;
    group = blockIdx.y / tiles, first = group * group_rows, end = first + group_rows;
    row0 = first + blockIdx.y % tiles * kTile;
  }
  const int thread = int(threadIdx.x);
  const int64_t column0 = int64_t(blockIdx.x) * kTile;
  const int c = thread % kAcross * kPatchColumns, r = thread / kAcross * kPatchRows;
  uint4 q[kPatchRows];
#pragma unroll
  for (int i = 0; i < kPatchRows; ++i)
    q[i] = row0 + r + i < end && column0 + c < columns
               ? load_words(x + (row0 + r + i) * columns + column0 + c)
               : make_uint4(0, 0, 0, 0);
  const auto put = [&](int w, uint32_t a, uint32_t b, uint32_t d, uint32_t f) {
    transpose_bytes(a, b, d, f);
    const uint32_t of_column[4] = {a, b, d, f};
#pragma unroll
    for (int i = 0; i < 4; ++i) words[4 * place(c + 4 * w + i, r / 16) + r % 16 / 4] = of_column[i];
  };
  put(0, q[0].x, q[1].x, q[2].x, q[3].x);
  put(1, q[0].y, q[1].y, q[2].y, q[3].y);
  put(2, q[0].z, q[1].z, q[2].z, q[3].z);
  put(3, q[0].w, q[1].w, q[2].w, q[3].w);
  __syncthreads();
  const int64_t stride = PaddedColumns::stride(end - first);
  uint8_t* const of_group = transposed + PaddedColumns::start(first, group) * columns;
#pragma unroll
  for (int i = 0; i < kTile * kChunks / kThreads; ++i) {
    const int column = thread / kChunks + i * (kThreads / kChunks), chunk = thread % kChunks;
    if (column0 + column < columns && row0 - first + 16 * chunk < stride)
      store_words(of_group + (column0 + column) * stride + row0 - first + 16 * chunk,
                  tile[place(column, chunk)]);
  }
}

__global__ void __launch_bounds__(kThreads)
    clear_empty(float* c, const int32_t* first_E1, int64_t elements) {
  const int64_t e = blockIdx.y;
  if (first_E1[e] != first_E1[e + 1]) return;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += int64_t(gridDim.x) * kThreads)
    c[e * elements + i] = 0;
}

// Raises *worst, a float of at least 0, to x. NaN cannot occur.
__device__ __forceinline__ void raise(float* worst, float x) {
  atomicMax(reinterpret_cast<int*>(worst), int(__float_as_uint(x)));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    compare(const T* x_RN, const T* y_RN, int64_t N, float relative, float of_row,
            RowsDifference* result) {
  __shared__ float slots[kWarp];
  const T* const x = x_RN + blockIdx.x * N;
  const T* const y = y_RN + blockIdx.x * N;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < N; i += kThreads) {
    const float v = load_one(y + i);
    if (isfinite(v)) squares += v * v;
  }
  squares = row_sum(squares, kWarps, slots);
  const float size = sqrtf(squares / float(N));
  float most = 0;
  for (int64_t i = threadIdx.x; i < N; i += kThreads) {
    const float v = load_one(x + i), w = load_one(y + i);
    if (v == w || (!isfinite(v) && !isfinite(w))) continue;
    if (!isfinite(v) || !isfinite(w)) {
      most = __uint_as_float(0x7f800000u);
      continue;
    }
    // A row of zeros allows nothing; its difference is then infinite.
    most = fmaxf(most, fabsf(v - w) / (relative * fabsf(w) + of_row * size));
  }
  most = block_max<kWarps>(most);
  if (threadIdx.x != 0) return;
  if (most > 0) raise(&result->worst, most);
  if (squares > 0) atomicMax(&result->compared, 1);
}

}  // namespace

void fill_groups(const GroupMemory& memory, const GroupsOf& all, const int32_t* first_E1,
                 const float* a_inverse, const float* b_inverse, CUstream_st* stream) {
  MT_LAUNCH(fill, blocks_for(memory.arrays.groups, kThreads), kThreads, 0, stream, memory.arrays,
            memory.alpha, all, first_E1, a_inverse, b_inverse);
}

void transpose_groups(const void* x, const int32_t* first_E1, void* transposed, int64_t R,
                      int64_t groups, int64_t columns, CUstream_st* stream) {
  if (R == 0 || groups == 0 || columns == 0) return;
  const unsigned tiles =
      first_E1 ? max_tiles(R, groups, kTile) : unsigned(groups * div_up(R / groups, kTile));
  MT_LAUNCH(transpose, dim3(unsigned(div_up(columns, kTile)), tiles), kThreads, 0, stream,
            static_cast<const uint8_t*>(x), first_E1, R / groups, static_cast<uint8_t*>(transposed),
            int(groups), columns);
}

void clear_empty_groups(float* c, const int32_t* first_E1, int64_t groups, int64_t elements,
                        CUstream_st* stream) {
  if (groups == 0 || elements == 0) return;
  MT_LAUNCH(clear_empty, dim3(blocks_for(elements, kThreads, 32), unsigned(groups)), kThreads, 0,
            stream, c, first_E1, elements);
}

void compare_rows(const CompareRows& a, RowsDifference* result, CUstream_st* stream) {
  clear_memory(result, sizeof(RowsDifference), stream);
  if (a.R == 0 || a.N == 0) return;
  with_float(a.x_RN.dtype, [&]<class T>() {
    MT_LAUNCH(compare<T>, unsigned(a.R), kThreads, 0, stream, data<T>(a.x_RN), data<T>(a.y_RN), a.N,
              a.relative, a.of_row, result);
  });
}

}  // namespace mtrain::kernels::cuda
