#include "kernels/elementwise.h"

#include <cmath>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_add(const Add& a) {
  check_holds("add", "a", a.a, a.y.count);
  check_holds("add", "b", a.b, a.y.count);
}
void check_cast(const Cast& a) {
  MT_CHECK(a.x.count == a.y.count, "cast: {} elements to {}", a.x.count, a.y.count);
}
void check_soft_cap(const SoftCap& a) {
  MT_CHECK(a.cap > 0 && std::isfinite(a.cap), "soft cap: a cap of {}", a.cap);
}
void check_dropout(const Dropout& a) {
  check("dropout", "x", a.x, a.y.count, a.y.dtype);
  MT_CHECK(a.p >= 0 && a.p < 1, "dropout: p = {} is not in [0, 1)", a.p);
  if (a.key_in_memory) check("dropout", "key", a.key_in_memory, 1, DType::i64);
  MT_CHECK(a.first_index >= 0, "dropout: first_index = {}", a.first_index);
}

}  // namespace

MT_DISPATCH(Add, check_add)
MT_DISPATCH(Cast, check_cast)
MT_DISPATCH(Scale, no_check)
MT_DISPATCH(SoftCap, check_soft_cap)
MT_DISPATCH(Fill, no_check)
MT_DISPATCH(Dropout, check_dropout)

void run(const AddRow& a) {
  check_holds("add row", "row", a.row_N, a.N);
  check_holds("add row", "y", a.y_MN, a.M * a.N);
  const int64_t size = dtype_size(a.y_MN.dtype);
  for (int64_t m = 0; m < a.M; ++m) {
    const Span y{a.y_MN.as<char>() + m * a.N * size, a.N, a.y_MN.dtype};
    run(Add{.a = y, .b = {a.row_N.data, a.N, a.row_N.dtype}, .y = y});
  }
}

void run(const FillNormal& a) {
  check("fill normal", "y", a.y, a.y.count, DType::f32);
  constexpr int64_t kGrain = 1 << 14;
  parallel_for(a.y.count, kGrain, [&](int64_t begin, int64_t end) {
    fill_normal(a.key, a.first_index + begin, end - begin, a.std, a.y.as<float>() + begin);
  });
}

}  // namespace mtrain::kernels::cpu
