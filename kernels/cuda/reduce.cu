// Whole-array reductions in two launches: the number of blocks and the elements of each depend only
// on the count, and the second launch adds the blocks' results in order.
#include "kernels/reduce.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kMaxBlocks = 1024;  // a thread of the last launch then combines two results
constexpr int kAhead = 2;         // vectors of a thread, in flight together
// Blocks of a multiprocessor; they share its registers.
constexpr int kBlocksAtOnce = kBlackwell ? 3 : 4, kSearchesAtOnce = kBlackwell ? 2 : 4;

__device__ __forceinline__ void block_sum(double sum, double* out) {
  __shared__ double slots[kWarp];
  sum = row_sum(sum, kWarps, slots);
  if (threadIdx.x == 0) *out = sum;
}

template <bool SQUARE, int N, class T>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    sums(const T* x, int64_t count, double* partials) {
  double sum = 0;
  for_loaded_vectors<N, kAhead>(x, count, [&](auto lanes, int64_t, const auto& v) {
    constexpr int L = decltype(lanes)::value;
#pragma unroll
    for (int j = 0; j < L; ++j) sum += SQUARE ? double(v[j]) * double(v[j]) : double(v[j]);
  });
  block_sum(sum, partials + blockIdx.x);
}

__global__ void __launch_bounds__(kThreads) add_sums(const double* partials, int n, double* out) {
  __shared__ double total;
  double sum = 0;
  for (int i = int(threadIdx.x); i < n; i += kThreads) sum += partials[i];
  block_sum(sum, &total);
  if (threadIdx.x == 0) *out += total;
}

// Returns the block's smallest value; -1 as an unsigned number is larger than all others.
__device__ __forceinline__ void block_min(uint64_t first, int64_t* out) {
  __shared__ uint64_t slots[kWarps];
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2)
    first = min(first, uint64_t(__shfl_xor_sync(kAllLanes, (unsigned long long)first, i)));
  if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = first;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) first = min(first, slots[w]);
  *out = int64_t(first);
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads, kSearchesAtOnce)
    first_non_finite(const T* x, int64_t count, int64_t* partials) {
  uint64_t first = ~uint64_t(0);
  for_loaded_vectors<N, kAhead>(x, count, [&](auto lanes, int64_t i, const auto& v) {
    constexpr int L = decltype(lanes)::value;
#pragma unroll
    for (int j = L - 1; j >= 0; --j)
      if (!isfinite(v[j])) first = min(first, uint64_t(i + j));
  });
  block_min(first, partials + blockIdx.x);
}

__global__ void __launch_bounds__(kThreads)
    min_first(const int64_t* partials, int n, int64_t* out) {
  uint64_t first = ~uint64_t(0);
  for (int i = int(threadIdx.x); i < n; i += kThreads) first = min(first, uint64_t(partials[i]));
  block_min(first, out);
}

__global__ void clip(const double* sum_squares, const double* copies, const double* loss,
                     float* norm, float* scale, float max_norm, double unscale, double limit,
                     const double* arguments_in_memory) {
  if (arguments_in_memory) unscale = arguments_in_memory[0], limit = arguments_in_memory[1];
  const float nan = __uint_as_float(0x7fc00000u);
  const double root = sqrt(*sum_squares) * unscale;
  const float seen = copies && !isfinite(*copies) ? nan : float(root);
  *norm = seen;
  const double fitting = double(max_norm) / (root + 1e-6);
  // The fp32 norm decides, since the host reads it: host and optimizer then never disagree.
  if (!isfinite(seen) || double(seen) > limit || (loss && !isfinite(*loss)))
    *scale = nan;
  else
    *scale = float(unscale * (max_norm == 0 || fitting > 1 ? 1.0 : fitting));
}

unsigned blocks_of(int64_t count, int width) {
  return blocks_for(count, int64_t(kThreads) * width * 2 * kAhead, kMaxBlocks);
}

template <bool SQUARE>
void add_sum(const ConstSpan& x, const Span& out, CUstream_st* stream) {
  if (x.count <= 0) return;
  with_float(x.dtype, [&]<class T>() {
    with_width<T>(aligned({x.data}), [&]<int N>() {
      const unsigned blocks = blocks_of(x.count, N);
      const Scratch<double> partials(blocks, stream);
      MT_LAUNCH((sums<SQUARE, N, T>), blocks, kThreads, 0, stream, data<T>(x), x.count,
                partials.get());
      MT_LAUNCH(add_sums, 1, kThreads, 0, stream, partials.get(), int(blocks), data<double>(out));
    });
  });
}

}  // namespace

void run(const SumSquares& a, CUstream_st* stream) { add_sum<true>(a.x, a.out, stream); }
void run(const Sum& a, CUstream_st* stream) { add_sum<false>(a.x, a.out, stream); }

void run(const FirstNonFinite& a, CUstream_st* stream) {
  with_float(a.x.dtype, [&]<class T>() {
    with_width<T>(aligned({a.x.data}), [&]<int N>() {
      const unsigned blocks = blocks_of(a.x.count, N);
      const Scratch<int64_t> partials(blocks, stream);
      MT_LAUNCH((first_non_finite<N, T>), blocks, kThreads, 0, stream, data<T>(a.x), a.x.count,
                partials.get());
      MT_LAUNCH(min_first, 1, kThreads, 0, stream, partials.get(), int(blocks),
                data<int64_t>(a.out));
    });
  });
}

void run(const ClipScale& a, CUstream_st* stream) {
  const double* squares = data<double>(a.sum_squares);
  const double* copies = a.sum_squares.count > 1 ? squares + 1 : nullptr;
  MT_LAUNCH(clip, 1, 1, 0, stream, squares, copies, data<double>(a.loss), data<float>(a.norm),
            data<float>(a.scale), a.max_norm, a.unscale, a.limit,
            data<double>(a.arguments_in_memory));
}

}  // namespace mtrain::kernels::cuda
