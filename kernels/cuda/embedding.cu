#include "kernels/embedding.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/device/scratch.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// A block has a part of one token's row. A kernel cannot report an id or position outside of its
// table: the row becomes NaN, and so does the loss.
template <int N, class W, class T>
__global__ void __launch_bounds__(kThreads)
    lookup(const int32_t* id_T, const W* table, const int32_t* position_T, const W* position_table,
           T* out, int64_t tokens, int64_t H, int64_t V, int64_t first_row, int64_t vocabulary,
           int64_t positions, float scale, unsigned parts) {
  for (int64_t task = blockIdx.x; task < tokens * parts; task += gridDim.x) {
    const int64_t t = task / parts, i = (task % parts * kThreads + threadIdx.x) * N;
    if (i >= H) continue;
    const int64_t id = id_T[t], row = id - first_row;
    const int64_t position = position_table ? position_T[t] : 0;
    const bool known =
        id >= 0 && id < vocabulary && (!position_table || (position >= 0 && position < positions));
    float v[N], at[N];
    if (known && row >= 0 && row < V) {
      load<N>(table + row * H + i, v);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] *= scale;
      if (position_table) {
        load<N>(position_table + position * H + i, at);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] += at[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = known ? 0.0f : __uint_as_float(0x7fc00000u);
    }
    store<N>(out + t * H + i, v);
  }
}

// The tokens of one id; all zeros if there are none.
struct Found {
  int first_from_end;  // number of tokens from the id's first one to the end
  int count;
};
__global__ void __launch_bounds__(kThreads)
    find_ids(const int32_t* id_T, int tokens, int64_t V, int64_t first_row, Found* found_V) {
  const int t = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (t >= tokens) return;
  const int64_t row = int64_t(id_T[t]) - first_row;
  if (row < 0 || row >= V) return;
  atomicMax(&found_V[row].first_from_end, tokens - t);
  atomicAdd(&found_V[row].count, 1);
}

template <int N, class T>
struct Loaded {
  uint4 words;
  __device__ __forceinline__ void load(const T* p) { words = load_words(p); }
  __device__ __forceinline__ void add_to(float (&sum)[N], float scale) const {
    float v[N];
    unpack<T>(words, v);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += scale * v[j];
  }
};
template <class T>
struct Loaded<1, T> {
  float value;
  __device__ __forceinline__ void load(const T* p) { value = load_one(p); }
  __device__ __forceinline__ void add_to(float (&sum)[1], float scale) const {
    sum[0] += scale * value;
  }
};

constexpr int kScan = 4;   // ids that a thread reads at once
constexpr int kAhead = 8;  // rows in flight: frequent ids have thousands of rows, added one by one
// The block of the first token of an id finds the later tokens of that id and adds up their rows,
// in order; the blocks of other tokens return immediately. Ids take little memory compared with the
// rows of dout, and stay in the caches.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    add_by_id(const int32_t* id_T, const T* dout, float* dtable, int tokens, int64_t H, int64_t V,
              int64_t first_row, float scale, const Found* found_V) {
  constexpr int kIds = kThreads * kScan, kWords = kIds / kWarp;
  __shared__ unsigned found[kWords];
  __shared__ int16_t matches[kIds];
  const int mine = int(blockIdx.x);
  const int32_t id = id_T[mine];
  const int64_t row = int64_t(id) - first_row;
  if (row < 0 || row >= V) return;
  const Found of_id = found_V[row];
  if (tokens - of_id.first_from_end != mine) return;
  const int thread = int(threadIdx.x), warp = thread / kWarp;
  const int64_t i = (int64_t(blockIdx.y) * kThreads + thread) * N;
  const bool has_columns = i < H;
  float sum[N] = {};
  if (has_columns) {
    Loaded<N, T> v;
    load<N>(dtable + row * H + i, sum);
    v.load(dout + int64_t(mine) * H + i);
    v.add_to(sum, scale);
  }
  int left = of_id.count - 1;
  for (int base = mine + 1; left > 0; base += kIds) {
    int any = 0;
    unsigned words[kScan];
#pragma unroll
    for (int k = 0; k < kScan; ++k) {
      const int t = base + k * kThreads + thread;
      words[k] = __ballot_sync(kAllLanes, t < tokens && id_T[t] == id);
      if (thread % kWarp == 0) found[k * (kThreads / kWarp) + warp] = words[k];
      any |= words[k] != 0;
    }
    if (!__syncthreads_or(any)) continue;  // nothing reads `found` in this round
    int n = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      // Lane l of the warp and the iteration k that computed the word writes its match, if it has
      // one.
      const int k = w / (kThreads / kWarp), lane = thread % kWarp;
      if (w % (kThreads / kWarp) == warp && (words[k] >> lane & 1))
        matches[n + __popc(words[k] & ((1u << lane) - 1))] = int16_t(w * kWarp + lane);
      n += __popc(found[w]);
    }
    __syncthreads();
    for (int m = 0; m < n && has_columns; m += kAhead) {
      Loaded<N, T> v[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (m + k < n) v[k].load(dout + int64_t(base + matches[m + k]) * H + i);
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (m + k < n) v[k].add_to(sum, scale);
    }
    left -= n;
    __syncthreads();  // found and matches may be written again
  }
  if (has_columns) store<N>(dtable + row * H + i, sum);
}

}  // namespace

void run(const EmbeddingForward& a, CUstream_st* stream) {
  if (a.T <= 0 || a.H <= 0) return;
  const int64_t positions = a.position_table_PH.count / a.H;
  with_float(a.table_VH.dtype, [&]<class W>() {
    with_float(a.out_TH.dtype, [&]<class T>() {
      const auto start = [&]<int N>() {
        if constexpr (mixes_halves<W, T>) return throw_not_float(a.out_TH.dtype);
        const unsigned parts = unsigned(div_up(a.H, kThreads * N));
        MT_LAUNCH((lookup<N, W, T>), blocks_for(a.T * parts, 1), kThreads, 0, stream,
                  data<int32_t>(a.id_T), data<W>(a.table_VH), data<int32_t>(a.position_T),
                  data<W>(a.position_table_PH), data<T>(a.out_TH), a.T, a.H, a.V, a.first_row,
                  a.vocabulary ? a.vocabulary : a.V, positions, a.scale, parts);
      };
      if (aligned({a.table_VH.data, a.position_table_PH.data, a.out_TH.data}) && a.H % 8 == 0)
        start.template operator()<8>();
      else
        start.template operator()<1>();
    });
  });
}

void run(const EmbeddingBackward& a, CUstream_st* stream) {
  if (a.T <= 0 || a.H <= 0 || a.V <= 0) return;
  const Scratch<Found> found_V(a.V, stream);
  clear_memory(found_V.get(), a.V * int64_t(sizeof(Found)), stream);
  MT_LAUNCH(find_ids, blocks_for(a.T, kThreads), kThreads, 0, stream, data<int32_t>(a.id_T),
            int(a.T), a.V, a.first_row, found_V.get());
  with_float(a.dout_TH.dtype, [&]<class T>() {
    const bool vectors = aligned({a.dout_TH.data, a.dtable_VH.data}) && a.H % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      const dim3 grid(unsigned(a.T), unsigned(div_up(a.H, kThreads * N)));
      MT_LAUNCH((add_by_id<N, T>), grid, kThreads, 0, stream, data<int32_t>(a.id_T),
                data<T>(a.dout_TH), data<float>(a.dtable_VH), int(a.T), a.H, a.V, a.first_row,
                a.scale, found_V.get());
    });
  });
}

}  // namespace mtrain::kernels::cuda
