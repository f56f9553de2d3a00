// Sizes of grids, and the loop over flat arrays.
#pragma once
#include <algorithm>

#include "base/span.h"
#include "kernels/cuda/device/vector.h"

namespace mtrain::kernels::cuda {

constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the number of blocks for `work` items at `per_block` each, at most `most`. Kernels loop
// over the remaining items.
inline unsigned blocks_for(int64_t work, int64_t per_block, int64_t most = 1 << 20) {
  return unsigned(std::clamp<int64_t>(div_up(work, per_block), 1, most));
}

// These describe the thread's current device.
int multiprocessors();
int64_t max_shared_memory();  // bytes that a block may use
bool block_can_have(size_t shared_memory);

template <class T>
const T* data(const ConstSpan& s) {
  return static_cast<const T*>(s.data);
}
template <class T>
T* data(const Span& s) {
  return static_cast<T*>(s.data);
}

// Calls f(constant<N>, i) for every vector of N elements that begins at i, and f(constant<1>, i)
// for the elements after the last full vector.
template <int N>
struct Lanes {
  static constexpr int value = N;
};
template <int N, class F>
__device__ __forceinline__ void for_vectors(int64_t count, const F& f) {
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = int64_t(gridDim.x) * blockDim.x, vectors = count / N;
  for (int64_t i = thread; i < vectors; i += threads) f(Lanes<N>{}, i * N);
  if constexpr (N > 1) {
    const int64_t i = vectors * N + thread;
    if (i < count) f(Lanes<1>{}, i);
  }
}
// Replaces every element v of y by f(v).
template <int N, class Y, class F>
__device__ __forceinline__ void change_elements(Y* y, int64_t count, const F& f) {
  for_vectors<N>(count, [&](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float v[L];
    load<L>(y + i, v);
#pragma unroll
    for (int j = 0; j < L; ++j) v[j] = f(v[j]);
    store<L>(y + i, v);
  });
}
// Calls f(constant<N>, i, the N elements that begin at x[i]), in the order of for_vectors. A thread
// has AHEAD loads in flight.
template <int N, int AHEAD, class T, class F>
__device__ __forceinline__ void for_loaded_vectors(const T* x, int64_t count, const F& f) {
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = int64_t(gridDim.x) * blockDim.x, vectors = count / N;
  int64_t i = thread;
  if constexpr (N == kVector<T>) {
    for (; i + (AHEAD - 1) * threads < vectors; i += AHEAD * threads) {
      uint4 words[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) words[k] = load_words(x + (i + k * threads) * N);
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        float v[N];
        unpack<T>(words[k], v);
        f(Lanes<N>{}, (i + k * threads) * N, v);
      }
    }
  }
  for (; i < vectors; i += threads) {
    float v[N];
    load<N>(x + i * N, v);
    f(Lanes<N>{}, i * N, v);
  }
  if constexpr (N > 1) {
    if (const int64_t at = vectors * N + thread; at < count) {
      const float v[1] = {load_one(x + at)};
      f(Lanes<1>{}, at, v);
    }
  }
}
constexpr int kFlatThreads = 256;
// Returns the blocks of a grid with one vector for each thread, at most a full grid.
inline unsigned flat_blocks(int64_t count, int width) {
  return blocks_for(div_up(count, width), kFlatThreads);
}

// with_width<T>(wide, [&]<int N>() { ... }) calls f with N, the elements of a 16-byte access, if
// such accesses are possible (wide), or with 1.
template <class T, class F>
void with_width(bool vectors, const F& f) {
  if (vectors)
    f.template operator()<kVector<T>>();
  else
    f.template operator()<1>();
}

}  // namespace mtrain::kernels::cuda
