#include "kernels/activation.h"

#include "kernels/cuda/device/amax.h"
#include "kernels/cuda/device/float8_store.h"
#include "kernels/cuda/device/gate.h"
#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

template <bool AMAX, bool TANH, int N, class T>
__global__ void gelu_forward(const T* x, T* y, int64_t count, float* amax) {
  wait_for_previous_kernel();
  float most = 0;
  for_vectors<N>(count, [&](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float v[L];
    load<L>(x + i, v);
#pragma unroll
    for (int j = 0; j < L; ++j) v[j] = gelu<TANH, T>(v[j]);
    store<L>(y + i, v);
    if constexpr (AMAX) most = larger_stored<T>(most, v);
  });
  if constexpr (AMAX) raise_amax(amax, most);
}

template <bool AMAX, bool TANH, int N, class T>
__global__ void gelu_backward(const T* x, const T* dy, T* dx, T* y, int64_t count, float* amax) {
  wait_for_previous_kernel();
  float most = 0;
  for_vectors<N>(count, [&](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float v[L], d[L], recomputed[L];
    load<L>(x + i, v);
    load<L>(dy + i, d);
#pragma unroll
    for (int j = 0; j < L; ++j) d[j] *= gelu_slope<TANH, T>(v[j], recomputed[j]);
    store<L>(dx + i, d);
    if (y) store<L>(y + i, recomputed);
    if constexpr (AMAX) most = larger_stored<T>(most, d);
  });
  if constexpr (AMAX) raise_amax(amax, most);
}

// Calls f(row, i) for every vector of N elements of rows of F: the grid's x dimension splits a row,
// its y dimension splits the rows.
template <int N, class Body>
__device__ __forceinline__ void for_rows(int64_t T, int64_t F, const Body& f) {
  const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= F) return;
  for (int64_t row = blockIdx.y; row < T; row += gridDim.y) f(row, i);
}
struct RowsGrid {
  dim3 blocks, threads;
};
// Splits a row into parts of equal size: few threads are then idle.
RowsGrid rows_grid(int64_t T, int64_t vectors) {
  constexpr int64_t kWarp = 32, kMaxRows = 65535;
  const int64_t parts = div_up(vectors, kFlatThreads), each = div_up(vectors, parts);
  return {dim3(unsigned(parts), blocks_for(T, 1, kMaxRows)),
          dim3(unsigned(div_up(each, kWarp) * kWarp))};
}

// The additional results of a kernel. Each takes registers that kernels without it save. `eight`:
// results in 8 bits, and the maximum if amax is present.
enum class Extra { none, amax, eight };

template <GateFunction GATE, Extra EXTRA, int N, class T>
__global__ void swiglu_forward(const T* gate_up, T* y, int64_t rows, int64_t F, float* amax,
                               Float8Out eight) {
  wait_for_previous_kernel();
  const float scale = EXTRA == Extra::eight ? *eight.scale : 0.0f;
  float most = 0;
  for_rows<N>(rows, F, [&](int64_t row, int64_t i) {
    const T* gate = gate_up + row * 2 * F + i;
    float g[N], u[N];
    load<N>(gate, g);
    load<N>(gate + F, u);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = gate_value<GATE, T>(g[j]) * u[j];  // as in backward
    if constexpr (EXTRA == Extra::eight)
      store_float8<T>(eight, row * F + i, g, scale);
    else
      store<N>(y + row * F + i, g);
    if constexpr (EXTRA != Extra::none) most = larger_stored<T>(most, g);
  });
  if (EXTRA != Extra::none && amax) raise_amax(amax, most);
}

template <class T>
struct SwigluGradient {
  const T *gate_up, *dy;
  T *dgate_up, *y;
  int64_t rows, F;
  float* amax;
  Float8Out eight_dgate_up, eight_y;
};

template <GateFunction GATE, Extra EXTRA, int N, class T>
__global__ void swiglu_backward(SwigluGradient<T> a) {
  wait_for_previous_kernel();
  // Stores a result in 8 bits if it has a scale, else as T.
  const auto put = [](const Float8Out& eight, float scale, T* to, int64_t i, const float(&v)[N]) {
    if (EXTRA == Extra::eight && eight.scale)
      store_float8<T>(eight, i, v, scale);
    else
      store<N>(to + i, v);
  };
  const auto scale_of = [](const Float8Out& eight) {
    return EXTRA == Extra::eight && eight.scale ? *eight.scale : 0.0f;
  };
  const float gradient_scale = scale_of(a.eight_dgate_up), y_scale = scale_of(a.eight_y);
  float most = 0;
  for_rows<N>(a.rows, a.F, [&](int64_t row, int64_t i) {
    const int64_t at = row * 2 * a.F + i;
    float g[N], u[N], d[N], recomputed[N];
    load<N>(a.gate_up + at, g);
    load<N>(a.gate_up + at + a.F, u);
    load<N>(a.dy + row * a.F + i, d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float value;
      const float slope = gate_slope<GATE, T>(g[j], value);
      recomputed[j] = value * u[j];
      g[j] = d[j] * u[j] * slope;
      u[j] = d[j] * value;
    }
    put(a.eight_dgate_up, gradient_scale, a.dgate_up, at, g);
    put(a.eight_dgate_up, gradient_scale, a.dgate_up, at + a.F, u);
    if (a.y) put(a.eight_y, y_scale, a.y, row * a.F + i, recomputed);
    if constexpr (EXTRA != Extra::none) most = larger_stored<T>(larger_stored<T>(most, g), u);
  });
  if (EXTRA != Extra::none && a.amax) raise_amax(a.amax, most);
}

// with_extra(amax, eight, [&]<Extra EXTRA>() { ... }) calls f with the kernel's additional results.
template <class F>
void with_extra(bool amax, bool eight, const F& f) {
  if (eight)
    f.template operator()<Extra::eight>();
  else if (amax)
    f.template operator()<Extra::amax>();
  else
    f.template operator()<Extra::none>();
}

}  // namespace

void run(const SwigluForward& a, CUstream_st* stream) {
  if (a.T <= 0 || a.F <= 0) return;
  with_float(a.gate_up_T2F.dtype, [&]<class T>() {
    const bool vectors = aligned({a.gate_up_T2F.data, a.y_TF.data}) && a.F % kVector<T> == 0;
    with_width<T>(vectors, [&]<int N>() {
      const RowsGrid grid = rows_grid(a.T, div_up(a.F, N));
      with_extra(bool(a.amax), bool(a.scale), [&]<Extra EXTRA>() {
        with_gate(a.gate, [&]<GateFunction GATE>() {
          MT_LAUNCH_DEPENDENT((swiglu_forward<GATE, EXTRA, N, T>), grid.blocks, grid.threads, 0,
                              stream, data<T>(a.gate_up_T2F), data<T>(a.y_TF), a.T, a.F,
                              data<float>(a.amax), float8_out(a.y_TF, a.scale));
        });
      });
    });
  });
}

void run(const SwigluBackward& a, CUstream_st* stream) {
  if (a.T <= 0 || a.F <= 0) return;
  with_float(a.gate_up_T2F.dtype, [&]<class T>() {
    const bool vectors =
        aligned({a.gate_up_T2F.data, a.dy_TF.data, a.dgate_up_T2F.data, a.y_TF.data}) &&
        a.F % kVector<T> == 0;
    const SwigluGradient<T> args{data<T>(a.gate_up_T2F),
                                 data<T>(a.dy_TF),
                                 data<T>(a.dgate_up_T2F),
                                 data<T>(a.y_TF),
                                 a.T,
                                 a.F,
                                 data<float>(a.amax),
                                 float8_out(a.dgate_up_T2F, a.scale),
                                 float8_out(a.y_TF, a.y_scale)};
    with_width<T>(vectors, [&]<int N>() {
      const RowsGrid grid = rows_grid(a.T, div_up(a.F, N));
      with_extra(bool(a.amax), a.scale || a.y_scale, [&]<Extra EXTRA>() {
        with_gate(a.gate, [&]<GateFunction GATE>() {
          MT_LAUNCH_DEPENDENT((swiglu_backward<GATE, EXTRA, N, T>), grid.blocks, grid.threads, 0,
                              stream, args);
        });
      });
    });
  });
}

void run(const GeluForward& a, CUstream_st* stream) {
  if (a.count <= 0) return;
  with_float(a.y.dtype, [&]<class T>() {
    with_width<T>(aligned({a.x.data, a.y.data}), [&]<int N>() {
      with_amax(a.amax, [&]<bool AMAX>() {
        const auto launch = [&]<bool TANH>() {
          MT_LAUNCH_DEPENDENT((gelu_forward<AMAX, TANH, N, T>), flat_blocks(a.count, N),
                              kFlatThreads, 0, stream, data<T>(a.x), data<T>(a.y), a.count,
                              data<float>(a.amax));
        };
        a.tanh ? launch.template operator()<true>() : launch.template operator()<false>();
      });
    });
  });
}

void run(const GeluBackward& a, CUstream_st* stream) {
  if (a.count <= 0) return;
  with_float(a.dx.dtype, [&]<class T>() {
    with_width<T>(aligned({a.x.data, a.dy.data, a.dx.data, a.y.data}), [&]<int N>() {
      with_amax(a.amax, [&]<bool AMAX>() {
        const auto launch = [&]<bool TANH>() {
          MT_LAUNCH_DEPENDENT((gelu_backward<AMAX, TANH, N, T>), flat_blocks(a.count, N),
                              kFlatThreads, 0, stream, data<T>(a.x), data<T>(a.dy), data<T>(a.dx),
                              data<T>(a.y), a.count, data<float>(a.amax));
        };
        a.tanh ? launch.template operator()<true>() : launch.template operator()<false>();
      });
    });
  });
}

}  // namespace mtrain::kernels::cuda
