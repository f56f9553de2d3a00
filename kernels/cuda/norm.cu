#include "kernels/norm.h"

#include "kernels/cuda/device/amax.h"
#include "kernels/cuda/device/column_sum.h"
#include "kernels/cuda/device/float8_store.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/norm_grid.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kHeld = 4;             // vectors of a row that a thread keeps in registers
constexpr int kMaxThreads = 512;     // threads of a row: more would have too few registers each
constexpr int kHeldInBackward = 16;  // elements: four arrays of them are in registers
constexpr int kSmallRows = 8;        // rows of a block, if each has one warp
constexpr int kRowsAtOnce = 2;       // largest blocks that a multiprocessor runs at once

// Row r = token * heads + head starts at token * token_stride + head * H.
struct Rows {
  int64_t count, H, heads, token_stride;
  float per_element;  // 1 / H; if ranks share the rows, 1 / the elements of all ranks
  __device__ __forceinline__ int64_t start(int64_t r) const {
    return heads == 1 ? r * token_stride : r / heads * token_stride + r % heads * H;
  }
};
template <class Args>
Rows rows_of(const Args& a) {
  return {a.T * a.heads, a.H, a.heads, a.token_stride ? a.token_stride : a.heads * a.H,
          1.0f / float(a.sum_T ? a.width : a.H)};
}

template <class T>
struct Forward {
  const T *x, *residual, *w, *b;
  T *sum, *y;
  float *rstd, *mean, *amax;
  float eps;
  bool layer, plus_one;
  Float8Out eight;    // y, if it has a scale
  const float* sums;  // row sums over all ranks, if they share the rows: for forward_any
};

// Loads into x what this thread holds of the row that begins at `start`: vectors of N elements,
// `stride` apart, from element `first` on. A residual is added, and the sum is rounded as it is
// stored: backward reads the same numbers.
template <int N, bool RESIDUAL, class T>
__device__ __forceinline__ void load_row(const Forward<T>& a, int64_t start, int64_t first,
                                         int stride, int64_t H, float (&x)[kHeld][N]) {
  uint4 words[kHeld], residual[RESIDUAL ? kHeld : 1];
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (first + k * stride < H) words[k] = load_words(a.x + start + first + k * stride);
  if constexpr (RESIDUAL) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (first + k * stride < H) residual[k] = load_words(a.residual + start + first + k * stride);
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (first + k * stride < H) unpack<T>(words[k], x[k]);
  if constexpr (RESIDUAL) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (first + k * stride < H) {
        float more[N];
        unpack<T>(residual[k], more);
#pragma unroll
        for (int j = 0; j < N; ++j) x[k][j] = rounded<T>(x[k][j] + more[j]);
        store<N>(a.sum + start + first + k * stride, x[k]);
      }
  }
}

// threadIdx.y is the row in the block; a row of more than one warp has a full block.
template <int N, bool RESIDUAL, class T>
__global__ void __launch_bounds__(kMaxThreads, 1) forward(Forward<T> a, Rows rows) {
  wait_for_previous_kernel();
  __shared__ float slots[kWarp];
  const int warps = int(blockDim.x) / kWarp, stride = int(blockDim.x) * N;
  const int64_t step = int64_t(gridDim.x) * blockDim.y;
  const float scale = a.eight.scale ? *a.eight.scale : 0.0f;
  float most = 0;
  for (int64_t r = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; r < rows.count; r += step) {
    const int64_t start = rows.start(r), first = int64_t(threadIdx.x) * N;
    float x[kHeld][N];
    load_row<N, RESIDUAL>(a, start, first, stride, rows.H, x);
    float total = 0, mean = 0;
    if (a.layer) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k)
        if (first + k * stride < rows.H)
#pragma unroll
          for (int j = 0; j < N; ++j) total += x[k][j];
      mean = row_sum(total, warps, slots) * rows.per_element;
      total = 0;
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (first + k * stride < rows.H)
#pragma unroll
        for (int j = 0; j < N; ++j) {
          x[k][j] -= mean;
          total += x[k][j] * x[k][j];
        }
    const float rstd = 1.0f / sqrtf(row_sum(total, warps, slots) * rows.per_element + a.eps);
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (const int64_t i = first + k * stride; i < rows.H) {
        float w[N];
        load<N>(a.w + i, w);
        if (a.plus_one) {
#pragma unroll
          for (int j = 0; j < N; ++j) w[j] += 1.0f;
        }
#pragma unroll
        for (int j = 0; j < N; ++j) x[k][j] *= rstd * w[j];
        if (a.b) {
          load<N>(a.b + i, w);
#pragma unroll
          for (int j = 0; j < N; ++j) x[k][j] += w[j];
        }
        if (a.eight.scale)
          store_float8<T>(a.eight, start + i, x[k], scale);
        else
          store<N>(a.y + start + i, x[k]);
        if (a.amax) most = larger_stored<T>(most, x[k]);
      }
    if (threadIdx.x == 0) {
      if (a.rstd) a.rstd[r] = rstd;
      if (a.mean) a.mean[r] = mean;
    }
  }
  if (a.amax) raise_amax(a.amax, most);
}

// Returns the factor of a norm: w, or 1 + w.
template <class T>
__device__ __forceinline__ float factor(const T* w, bool plus_one) {
  return plus_one ? load_one(w) + 1.0f : load_one(w);
}

// For rows that are not aligned, that are too long for a block's registers, or that ranks share. It
// processes single elements, and reloads them for each use.
template <class T>
__global__ void __launch_bounds__(kMaxThreads) forward_any(Forward<T> a, Rows rows) {
  wait_for_previous_kernel();
  __shared__ float slots[kWarp];
  const int warps = int(blockDim.x) / kWarp;
  const float scale = a.eight.scale ? *a.eight.scale : 0.0f;
  float most = 0;
  for (int64_t r = blockIdx.x; r < rows.count; r += gridDim.x) {
    const int64_t start = rows.start(r);
    const T* x = a.x + start;
    float total = 0, mean = 0;
    if (!a.sums)
      for (int64_t i = threadIdx.x; i < rows.H; i += blockDim.x) {
        float v = load_one(x + i);
        if (a.residual) {
          v = rounded<T>(v + load_one(a.residual + start + i));
          store_one(a.sum + start + i, v);
        }
        total += a.layer ? v : v * v;
      }
    if (a.residual) x = a.sum + start;  // each thread reads only the elements that it has written
    total = a.sums ? a.sums[r] : row_sum(total, warps, slots);
    if (a.layer) {
      mean = total * rows.per_element;
      total = 0;
      for (int64_t i = threadIdx.x; i < rows.H; i += blockDim.x) {
        const float d = load_one(x + i) - mean;
        total += d * d;
      }
      total = row_sum(total, warps, slots);
    }
    const float rstd = 1.0f / sqrtf(total * rows.per_element + a.eps);
    for (int64_t i = threadIdx.x; i < rows.H; i += blockDim.x) {
      float v = (load_one(x + i) - mean) * rstd * factor(a.w + i, a.plus_one);
      if (a.b) v += load_one(a.b + i);
      const float one[1] = {v};
      if (a.eight.scale)
        store_float8<T>(a.eight, start + i, one, scale);
      else
        store_one(a.y + start + i, v);
      if (a.amax) most = larger_stored<T>(most, v);
    }
    if (threadIdx.x == 0) {
      if (a.rstd) a.rstd[r] = rstd;
      if (a.mean) a.mean[r] = mean;
    }
  }
  if (a.amax) raise_amax(a.amax, most);
}

template <class T>
struct Backward {
  const T *dy, *x, *w, *dresidual;
  const float *rstd, *mean;
  T* dx;
  float* partials;  // a row for each row of threads: dw, then db if requested
  float* amax;
  bool layer, db, plus_one;
  Float8Out eight;    // dx also in 8 bits, if there is a scale
  const float* sums;  // row sums over all ranks, if they share the rows: for backward_any
};

// The data of a row that backward reads, in memory format.
template <int HELD>
struct RowRead {
  uint4 dy[HELD], x[HELD];
  float rstd, mean;
};
template <int N, int HELD, class T>
__device__ __forceinline__ void read(const Backward<T>& a, const Rows& rows, int64_t r, int stride,
                                     RowRead<HELD>& row) {
  if (r >= rows.count) return;
  const int64_t start = rows.start(r), first = int64_t(threadIdx.x) * N;
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (const int64_t i = first + k * stride; i < rows.H) {
      row.dy[k] = load_words(a.dy + start + i);
      row.x[k] = load_words(a.x + start + i);
    }
  row.rstd = a.rstd[r];
  row.mean = a.layer ? a.mean[r] : 0.0f;
}

// With xhat = (x - mean) rstd and g = dy w: dx = rstd (g - [mean of g] - xhat * mean of (g xhat)),
// [] in layer norm only; dw += dy xhat; db += dy. A row of threads processes rows that are a grid
// apart, and sums dw and db in registers. If the registers suffice, a row is read while the
// previous one is computed.
template <int N, int HELD, bool DB, class T>
__global__ void __launch_bounds__(kMaxThreads, HELD == 1 && !DB ? kRowsAtOnce : 1)
    backward(Backward<T> a, Rows rows) {
  wait_for_previous_kernel();
  __shared__ float slots[kWarp];
  const int warps = int(blockDim.x) / kWarp, stride = int(blockDim.x) * N;
  const int64_t slot = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t step = int64_t(gridDim.x) * blockDim.y, first = int64_t(threadIdx.x) * N;
  const float scale = a.eight.scale ? *a.eight.scale : 0.0f;
  float dw[HELD][N] = {}, db[DB ? HELD : 1][N] = {}, most = 0;
  // Whether registers suffice for the next row, for dresidual before it is needed, and for xhat
  // until then.
  constexpr bool kAhead = HELD == 1, kResidualEarly = HELD == 1 && !kBlackwell,
                 kKeepsXhat = !(kBlackwell && DB && HELD * N > 8 && sizeof(T) == 4);
  RowRead<HELD> next;
  if (kAhead) read<N>(a, rows, slot, stride, next);
  for (int64_t r = slot; r < rows.count; r += step) {
    if (!kAhead) read<N>(a, rows, r, stride, next);
    const int64_t start = rows.start(r);
    const float rstd = next.rstd, mean = next.mean;
    float dy[HELD][N], xhat[HELD][N];
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k)
      if (first + k * stride < rows.H) {
        unpack<T>(next.dy[k], dy[k]);
        unpack<T>(next.x[k], xhat[k]);
      }
    if (kAhead) read<N>(a, rows, r + step, stride, next);
#pragma unroll
    for (int k = 0; k < HELD; ++k)
      if (const int64_t i = first + k * stride; i < rows.H) {
        float w[N];
        load<N>(a.w + i, w);
        if (a.plus_one) {
#pragma unroll
          for (int j = 0; j < N; ++j) w[j] += 1.0f;
        }
#pragma unroll
        for (int j = 0; j < N; ++j) {
          xhat[k][j] = (xhat[k][j] - mean) * rstd;
          dw[k][j] += dy[k][j] * xhat[k][j];
          if constexpr (DB) db[k][j] += dy[k][j];
          dy[k][j] *= w[j];  // g from here on
          sum_g += dy[k][j];
          sum_gx += dy[k][j] * xhat[k][j];
        }
      }
    // It arrives while the sums are computed.
    uint4 dresidual;
    if (kResidualEarly && a.dresidual && first < rows.H)
      dresidual = load_words(a.dresidual + start + first);
    const float mean_gx = row_sum(sum_gx, warps, slots) * rows.per_element;
    const float mean_g = a.layer ? row_sum(sum_g, warps, slots) * rows.per_element : 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; ++k)
      if (const int64_t i = first + k * stride; i < rows.H) {
        if constexpr (!kKeepsXhat) {
          unpack<T>(load_words(a.x + start + i), xhat[k]);
#pragma unroll
          for (int j = 0; j < N; ++j) xhat[k][j] = (xhat[k][j] - mean) * rstd;
        }
#pragma unroll
        for (int j = 0; j < N; ++j) dy[k][j] = rstd * (dy[k][j] - mean_g - xhat[k][j] * mean_gx);
        if (a.dresidual) {
          unpack<T>(kResidualEarly ? dresidual : load_words(a.dresidual + start + i), xhat[k]);
#pragma unroll
          for (int j = 0; j < N; ++j) dy[k][j] += xhat[k][j];
        }
        store<N>(a.dx + start + i, dy[k]);
        if (a.eight.scale) store_float8<T>(a.eight, start + i, dy[k], scale);
        if (a.amax) most = larger_stored<T>(most, dy[k]);
      }
  }
  if (a.amax) raise_amax(a.amax, most);
  float* const out = a.partials + slot * rows.H * (DB ? 2 : 1);
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (const int64_t i = first + k * stride; i < rows.H) {
      store<N>(out + i, dw[k]);
      if constexpr (DB) store<N>(out + rows.H + i, db[k]);
    }
}

// The backward for the rows that forward_any handles. A block's sums are kept in its row of
// partials.
template <class T>
__global__ void MT_BOUNDS(kMaxThreads) backward_any(Backward<T> a, Rows rows) {
  wait_for_previous_kernel();
  __shared__ float slots[kWarp];
  const int warps = int(blockDim.x) / kWarp;
  float* const dw = a.partials + blockIdx.x * rows.H * (a.db ? 2 : 1);
  float* const db = dw + rows.H;
  const float scale = a.eight.scale ? *a.eight.scale : 0.0f;
  float most = 0;
  for (int64_t r = blockIdx.x; r < rows.count; r += gridDim.x) {
    const bool begin = r == int64_t(blockIdx.x);
    const int64_t start = rows.start(r);
    const float rstd = a.rstd[r], mean = a.layer ? a.mean[r] : 0.0f;
    float sum_g = 0, sum_gx = 0;
    for (int64_t i = threadIdx.x; i < rows.H; i += blockDim.x) {
      const float d = load_one(a.dy + start + i), g = d * factor(a.w + i, a.plus_one);
      const float xhat = (load_one(a.x + start + i) - mean) * rstd;
      sum_g += g;
      sum_gx += g * xhat;
      dw[i] = (begin ? 0.0f : dw[i]) + d * xhat;
      if (a.db) db[i] = (begin ? 0.0f : db[i]) + d;
    }
    const float mean_gx = (a.sums ? a.sums[r] : row_sum(sum_gx, warps, slots)) * rows.per_element;
    const float mean_g = a.layer ? row_sum(sum_g, warps, slots) * rows.per_element : 0.0f;
    for (int64_t i = threadIdx.x; i < rows.H; i += blockDim.x) {
      const float xhat = (load_one(a.x + start + i) - mean) * rstd;
      float v = load_one(a.dy + start + i) * factor(a.w + i, a.plus_one);
      v = rstd * (v - mean_g - xhat * mean_gx);
      if (a.dresidual) v += load_one(a.dresidual + start + i);
      store_one(a.dx + start + i, v);
      const float one[1] = {v};
      if (a.eight.scale) store_float8<T>(a.eight, start + i, one, scale);
      if (a.amax) most = larger_stored<T>(most, v);
    }
  }
  if (a.amax) raise_amax(a.amax, most);
}

template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    sum_rows(const T* x, const T* dy, const T* w, const float* rstd, bool plus_one, float* sums,
             Rows rows) {
  wait_for_previous_kernel();
  __shared__ float slots[kWarp];
  const int warps = int(blockDim.x) / kWarp;
  for (int64_t r = blockIdx.x; r < rows.count; r += gridDim.x) {
    const int64_t start = rows.start(r);
    float total = 0;
    for (int64_t i = threadIdx.x; i < rows.H; i += blockDim.x) {
      const float v = load_one(x + start + i);
      total += dy ? load_one(dy + start + i) * factor(w + i, plus_one) * (v * rstd[r]) : v * v;
    }
    total = row_sum(total, warps, slots);
    if (threadIdx.x == 0) sums[r] = total;
  }
}

unsigned threads_of(int64_t H, int64_t per_thread) {
  return unsigned(std::min<int64_t>(kMaxThreads, div_up(div_up(H, per_thread), kWarp) * kWarp));
}
dim3 block_of(unsigned threads) { return dim3(threads, threads == kWarp ? kSmallRows : 1); }

template <class T>
bool has_aligned_vectors(const Rows& r) {
  return r.H % kVector<T> == 0 && r.token_stride % kVector<T> == 0;
}

// Returns the rows of threads in the backward's grid, which decide the order of the sums. Without a
// margin they depend only on the sizes, and fill the largest GPUs; with a margin they depend on
// this GPU's multiprocessors.
int64_t slots_of(const Rows& rows, unsigned threads, int64_t margin) {
  constexpr int64_t kMultiprocessors = 132;
  const int64_t available = margin > 0 ? multiprocessors() : kMultiprocessors;
  return std::min(norm_rows_at_once(threads, available, margin), rows.count);
}

// The forward's rows are independent of each other: its grid is full except for the margin.
unsigned forward_blocks(const Rows& rows, dim3 block, int64_t margin) {
  if (margin <= 0) return blocks_for(rows.count, block.y);
  const int64_t most = norm_rows_at_once(block.x, multiprocessors(), margin);
  return blocks_for(std::min(rows.count, most), block.y);
}

template <int HELD, class T>
void start_backward(const Backward<T>& b, const Rows& rows, unsigned threads, unsigned blocks,
                    CUstream_st* stream) {
  constexpr int N = kVector<T>;
  if (b.db)
    MT_LAUNCH_DEPENDENT((backward<N, HELD, true, T>), blocks, block_of(threads), 0, stream, b,
                        rows);
  else
    MT_LAUNCH_DEPENDENT((backward<N, HELD, false, T>), blocks, block_of(threads), 0, stream, b,
                        rows);
}

}  // namespace

void run(const NormForward& a, CUstream_st* stream) {
  const Rows rows = rows_of(a);
  if (rows.count <= 0) return;
  with_float(a.x_TH.dtype, [&]<class T>() {
    const Forward<T> f{data<T>(a.x_TH),
                       data<T>(a.residual_TH),
                       data<T>(a.w_H),
                       data<T>(a.b_H),
                       data<T>(a.sum_TH),
                       data<T>(a.y_TH),
                       data<float>(a.rstd_T),
                       data<float>(a.mean_T),
                       data<float>(a.amax),
                       a.eps,
                       a.kind == NormKind::layer,
                       a.plus_one,
                       float8_out(a.y_TH, a.scale),
                       data<float>(a.sum_T)};
    constexpr int N = kVector<T>;
    if (!f.sums && rows.H <= kMaxThreads * kHeld * N && has_aligned_vectors<T>(rows) &&
        aligned({f.x, f.residual, f.w, f.b, f.sum, f.y})) {
      const dim3 block = block_of(threads_of(rows.H, kHeld * N));
      const unsigned blocks = forward_blocks(rows, block, a.sm_margin);
      if (f.residual)
        MT_LAUNCH_DEPENDENT((forward<N, true, T>), blocks, block, 0, stream, f, rows);
      else
        MT_LAUNCH_DEPENDENT((forward<N, false, T>), blocks, block, 0, stream, f, rows);
    } else {
      const unsigned threads = threads_of(rows.H, 4);
      MT_LAUNCH_DEPENDENT((forward_any<T>), forward_blocks(rows, dim3(threads, 1), a.sm_margin),
                          threads, 0, stream, f, rows);
    }
  });
}

void run(const NormBackward& a, CUstream_st* stream) {
  const Rows rows = rows_of(a);
  if (rows.count <= 0) return;
  with_float(a.x_TH.dtype, [&]<class T>() {
    constexpr int N = kVector<T>;
    const int64_t width = a.db_H ? 2 * rows.H : rows.H;
    const bool vectors = !a.sum_T && has_aligned_vectors<T>(rows) &&
                         rows.H <= kMaxThreads * kHeldInBackward &&
                         aligned({a.dy_TH.data, a.x_TH.data, a.w_H.data, a.dresidual_TH.data,
                                  a.dx_TH.data, a.quantized_TH.data});
    const unsigned threads = threads_of(rows.H, vectors ? N : 4);
    const unsigned per_block = vectors ? block_of(threads).y : 1;
    const unsigned blocks = unsigned(div_up(slots_of(rows, threads, a.sm_margin), per_block));
    const int64_t slots = int64_t(blocks) * per_block;
    const Scratch<float> partials(slots * width, stream);
    const Backward<T> b{data<T>(a.dy_TH),
                        data<T>(a.x_TH),
                        data<T>(a.w_H),
                        data<T>(a.dresidual_TH),
                        data<float>(a.rstd_T),
                        data<float>(a.mean_T),
                        data<T>(a.dx_TH),
                        partials.get(),
                        data<float>(a.amax),
                        a.kind == NormKind::layer,
                        bool(a.db_H),
                        a.plus_one,
                        float8_out(a.quantized_TH, a.scale),
                        data<float>(a.sum_T)};
    if (!vectors)
      MT_LAUNCH_DEPENDENT((backward_any<T>), blocks, threads, 0, stream, b, rows);
    else if (rows.H <= kMaxThreads * N)
      start_backward<1>(b, rows, threads, blocks, stream);
    else
      start_backward<kHeldInBackward / N>(b, rows, threads, blocks, stream);
    add_partials(partials.get(), slots, width, rows.H, data<float>(a.dw_H), stream);
    if (a.db_H)
      add_partials(partials.get() + rows.H, slots, width, rows.H, data<float>(a.db_H), stream);
  });
}

void run(const NormSums& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  const Rows rows{a.T, a.H, 1, a.token_stride, 0.0f};
  with_float(a.x_TH.dtype, [&]<class T>() {
    MT_LAUNCH_DEPENDENT((sum_rows<T>), blocks_for(rows.count, 1), threads_of(rows.H, 4), 0, stream,
                        data<T>(a.x_TH), data<T>(a.dy_TH), data<T>(a.w_H), data<float>(a.rstd_T),
                        a.plus_one, data<float>(a.sum_T), rows);
  });
}

}  // namespace mtrain::kernels::cuda
