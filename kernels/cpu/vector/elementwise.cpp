#include "kernels/elementwise.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

namespace {

// Elements per chunk: a chunk takes longer than waking a thread.
constexpr int64_t kGrain = 32768;

}  // namespace

void run(const Add& a) {
  with_float(a.y.dtype, [&]<class Y>() {
    with_float(a.a.dtype, [&]<class A>() {
      with_float(a.b.dtype, [&]<class B>() {
        const A* left = a.a.as<A>();
        const B* right = a.b.as<B>();
        Y* y = a.y.as<Y>();
        parallel(a.y.count, kGrain, [=](int64_t begin, int64_t end) {
          for_lanes(end - begin, [=](int64_t i, auto m) {
            store(y + begin + i, load(left + begin + i, m) + load(right + begin + i, m), m);
          });
        });
      });
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
