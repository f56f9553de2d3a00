#include "kernels/elementwise.h"

#include "kernels/cpu/vector/softcap.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 32768;  // elements per chunk: enough work to justify waking a thread

// Sets y[i] to f(i, lanes) for all of y.
template <class Y, class F>
void map(Y* y, int64_t count, const F& f) {
  parallel(count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(end - begin, [=](int64_t i, auto m) { store(y + begin + i, f(begin + i, m), m); });
  });
}

void copy(const void* from, void* to, int64_t bytes) {
  parallel(bytes, kGrain * 4, [=](int64_t begin, int64_t end) {
    __builtin_memmove(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                      size_t(end - begin));
  });
}

}  // namespace

void run(const Add& a) {
  with_float(a.y.dtype, [&]<class Y>() {
    with_float(a.a.dtype, [&]<class A>() {
      with_float(a.b.dtype, [&]<class B>() {
        if constexpr (mixes_halves<Y, A, B>)
          throw_not_float(a.b.dtype);
        else
          map(data_of<Y>(a.y), a.y.count,
              [l = data_of<A>(a.a), r = data_of<B>(a.b)](int64_t i, auto m) {
                return load(l + i, m) + load(r + i, m);
              });
      });
    });
  });
}

void run(const Cast& a) {
  if (a.x.dtype == a.y.dtype) return copy(a.x.data, a.y.data, a.y.count * dtype_size(a.y.dtype));
  with_float(a.y.dtype, [&]<class Y>() {
    with_float(a.x.dtype, [&]<class X>() {
      map(data_of<Y>(a.y), a.y.count,
          [x = data_of<X>(a.x)](int64_t i, auto m) { return load(x + i, m); });
    });
  });
}

void run(const Scale& a) {
  with_float(a.y.dtype, [&]<class Y>() {
    Y* const y = data_of<Y>(a.y);
    map(y, a.y.count,
        [y, factor = splat(a.factor)](int64_t i, auto m) { return load(y + i, m) * factor; });
  });
}

void run(const SoftCap& a) {
  with_float(a.y.dtype, [&]<class Y>() {
    Y* const y = data_of<Y>(a.y);
    map(y, a.y.count, [y, cap = TanhCap{a.cap, 1 / a.cap}](int64_t i, auto m) {
      return capped(load(y + i, m), cap);
    });
  });
}

void run(const Fill& a) {
  if (a.value == 0) {  // 0 is all bits 0 in every type
    char* y = data_of<char>(a.y);
    return parallel(a.y.count * dtype_size(a.y.dtype), kGrain * 4, [=](int64_t begin, int64_t end) {
      __builtin_memset(y + begin, 0, size_t(end - begin));
    });
  }
  with_float(a.y.dtype, [&]<class Y>() {
    map(data_of<Y>(a.y), a.y.count, [v = a.value](int64_t, auto) { return splat(v); });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
