#include "kernels/elementwise.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/device/softcap.h"

namespace mtrain::kernels::cuda {
namespace {

template <int N, class Y, class A, class B>
__global__ void add(const A* a, const B* b, Y* y, int64_t count) {
  wait_for_previous_kernel();
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float l[L], r[L];
    load<L>(a + i, l);
    load<L>(b + i, r);
#pragma unroll
    for (int j = 0; j < L; ++j) l[j] += r[j];
    store<L>(y + i, l);
  });
}

// A vector is within one row.
template <int N, class Y, class X>
__global__ void add_row(const X* row, Y* y, int64_t count, int64_t columns) {
  wait_for_previous_kernel();
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float l[L], r[L];
    load<L>(y + i, l);
    load<L>(row + i % columns, r);
#pragma unroll
    for (int j = 0; j < L; ++j) l[j] += r[j];
    store<L>(y + i, l);
  });
}

template <int N, class Y, class X>
__global__ void cast(const X* x, Y* y, int64_t count) {
  wait_for_previous_kernel();
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float v[L];
    load<L>(x + i, v);
    store<L>(y + i, v);
  });
}

template <int N, class Y>
__global__ void scale(Y* y, float factor, int64_t count) {
  wait_for_previous_kernel();
  change_elements<N>(y, count, [=](float v) { return v * factor; });
}

template <int N, class Y>
__global__ void soft_cap(Y* y, TanhCap cap, int64_t count) {
  wait_for_previous_kernel();
  change_elements<N>(y, count, [=](float v) { return capped(v, cap); });
}

template <int N, class Y>
__global__ void fill(Y* y, float value, int64_t count) {
  wait_for_previous_kernel();
  for_vectors<N>(count, [=](auto lanes, int64_t i) {
    constexpr int L = decltype(lanes)::value;
    float v[L];
#pragma unroll
    for (int j = 0; j < L; ++j) v[j] = value;
    store<L>(y + i, v);
  });
}

// Vectors have eight elements if one operand has 16 bits: 16 bytes of it, 32 bytes of fp32.
template <class... T>
constexpr int kLanesOf = std::min({4, (sizeof(T) == 4 ? 4 : 0)...}) == 4 ? 4 : 8;

}  // namespace

void run(const Add& a, CUstream_st* stream) {
  if (a.y.count <= 0) return;
  with_float(a.y.dtype, [&]<class Y>() {
    with_float(a.a.dtype, [&]<class A>() {
      with_float(a.b.dtype, [&]<class B>() {
        if constexpr (mixes_halves<Y, A, B>) {
          throw_not_float(a.b.dtype);
        } else {
          constexpr int N = kLanesOf<Y, A, B>;
          const int64_t n = a.y.count;
          if (aligned({a.a.data, a.b.data, a.y.data}))
            MT_LAUNCH_DEPENDENT((add<N, Y, A, B>), flat_blocks(n, N), kFlatThreads, 0, stream,
                                data<A>(a.a), data<B>(a.b), data<Y>(a.y), n);
          else
            MT_LAUNCH_DEPENDENT((add<1, Y, A, B>), flat_blocks(n, 1), kFlatThreads, 0, stream,
                                data<A>(a.a), data<B>(a.b), data<Y>(a.y), n);
        }
      });
    });
  });
}

void run(const AddRow& a, CUstream_st* stream) {
  const int64_t n = a.M * a.N;
  if (n <= 0) return;
  with_float(a.y_MN.dtype, [&]<class Y>() {
    with_float(a.row_N.dtype, [&]<class X>() {
      if constexpr (mixes_halves<Y, X>) {
        throw_not_float(a.row_N.dtype);
      } else {
        constexpr int N = kLanesOf<Y, X>;
        if (a.N % N == 0 && aligned({a.row_N.data, a.y_MN.data}))
          MT_LAUNCH_DEPENDENT((add_row<N, Y, X>), flat_blocks(n, N), kFlatThreads, 0, stream,
                              data<X>(a.row_N), data<Y>(a.y_MN), n, a.N);
        else
          MT_LAUNCH_DEPENDENT((add_row<1, Y, X>), flat_blocks(n, 1), kFlatThreads, 0, stream,
                              data<X>(a.row_N), data<Y>(a.y_MN), n, a.N);
      }
    });
  });
}

void run(const Cast& a, CUstream_st* stream) {
  if (a.y.count <= 0) return;
  if (a.x.dtype == a.y.dtype) return copy_memory(a.y.data, a.x.data, a.y.bytes(), stream);
  const int64_t n = a.y.count;
  const bool vectors = aligned({a.x.data, a.y.data});
  const auto cast_to = [&]<class Y, class X>() {
    if (vectors)
      MT_LAUNCH_DEPENDENT((cast<8, Y, X>), flat_blocks(n, 8), kFlatThreads, 0, stream, data<X>(a.x),
                          data<Y>(a.y), n);
    else
      MT_LAUNCH_DEPENDENT((cast<1, Y, X>), flat_blocks(n, 1), kFlatThreads, 0, stream, data<X>(a.x),
                          data<Y>(a.y), n);
  };
  with_float(a.y.dtype, [&]<class Y>() {
    with_float(a.x.dtype, [&]<class X>() {
      if constexpr (!std::is_same_v<X, Y>) cast_to.template operator()<Y, X>();
    });
  });
}

void run(const Scale& a, CUstream_st* stream) {
  if (a.y.count <= 0) return;
  with_float(a.y.dtype, [&]<class Y>() {
    with_width<Y>(aligned({a.y.data}), [&]<int N>() {
      MT_LAUNCH_DEPENDENT((scale<N, Y>), flat_blocks(a.y.count, N), kFlatThreads, 0, stream,
                          data<Y>(a.y), a.factor, a.y.count);
    });
  });
}

void run(const SoftCap& a, CUstream_st* stream) {
  if (a.y.count <= 0) return;
  with_float(a.y.dtype, [&]<class Y>() {
    with_width<Y>(aligned({a.y.data}), [&]<int N>() {
      MT_LAUNCH_DEPENDENT((soft_cap<N, Y>), flat_blocks(a.y.count, N), kFlatThreads, 0, stream,
                          data<Y>(a.y), (TanhCap{a.cap, 1 / a.cap}), a.y.count);
    });
  });
}

void run(const Fill& a, CUstream_st* stream) {
  if (a.y.count <= 0) return;
  if (a.value == 0) return clear_memory(a.y.data, a.y.bytes(), stream);  // bits 0 in every type
  with_float(a.y.dtype, [&]<class Y>() {
    with_width<Y>(aligned({a.y.data}), [&]<int N>() {
      MT_LAUNCH_DEPENDENT((fill<N, Y>), flat_blocks(a.y.count, N), kFlatThreads, 0, stream,
                          data<Y>(a.y), a.value, a.y.count);
    });
  });
}

}  // namespace mtrain::kernels::cuda
