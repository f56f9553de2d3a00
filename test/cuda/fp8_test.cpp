#include <cmath>

#include "kernels/fp8.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

const std::vector<DType> kFloat8s{DType::f8e4m3, DType::f8e5m2};

// Returns numbers that include infinities, NaN, ties, denormals and numbers beyond the range.
Array numbers(DType type, int64_t n) {
  Array x = Array::normal(type, n, 1);
  const std::vector<double> special{INFINITY, -INFINITY, NAN,      1e30,   -1e30,      0x1p-9,
                                    0x3p-10,  0x1p-17,   0x3p-18,  464,    -464,       1.0625,
                                    61440,    1e-30,     -0x1p-10, 0x1p-7, 1 + 0x1p-4, 0.0};
  for (int64_t i = 0; i < n && i < int64_t(special.size()); ++i)
    x.set((i * 7 + 3) % n, special[size_t(i)]);
  return x;
}

}  // namespace

TEST_CASE("amax and its scales are the CPU's bits") {
  for (int64_t n :
       {int64_t(0), int64_t(1), int64_t(7), int64_t(4099), size_of_test(40001, 1000001)})
    for (DType dtype : kFloats)
      for_each_way([&](int64_t offset) {
        CAPTURE(n, dtype, offset);
        Mirror x(numbers(dtype, n), offset), amax(Array::one(DType::f32, 2.5)),
            scale(Array(DType::f32, 1)), inverse(Array(DType::f32, 1));
        const auto args = [&](auto&& of) {
          return Amax{of(x), of(amax), of(scale), of(inverse), DType::f8e5m2, 2};
        };
        cpu::run(args([](Mirror& m) { return m.host().span(); }));
        cuda::run(args([](Mirror& m) { return m.device(); }), device_stream());
        REQUIRE(amax.same());
        REQUIRE(scale.same());
        REQUIRE(inverse.same());
      });
}

TEST_CASE("quantized tensors and their transposes are the CPU's bits") {
  for (auto [T, N] : {std::pair<int64_t, int64_t>{1, 1},
                      {5, 7},
                      {64, 64},
                      {33, 200},
                      {130, 72},
                      {128, 128},
                      {33, 208},  // parts of a patch of 4 rows and of a tile of 128 columns
                      {130, 144},
                      {260, 16},
                      {size_of_test(70, 2048), size_of_test(136, 4096)}})
    for (DType dtype : kFloats)
      for (DType type : kFloat8s)
        for (int which : {1, 2, 3})  // rows, transpose, both
          for_each_way([&](int64_t offset) {
            CAPTURE(T, N, dtype, type, which, offset);
            const int64_t stride = (T + 15) / 16 * 16;
            Mirror x(numbers(dtype, T * N), offset), scale(Array::one(DType::f32, 0.75));
            Mirror y(Array(type, T * N), offset), transposed(Array::normal(type, N * stride, 2));
            Mirror amax(Array::one(DType::f32, 0.5));
            const auto args = [&, rows = T, columns = N](auto&& of) {
              Quantize q{.x_TN = of(x),
                         .scale = of(scale),
                         .amax = of(amax),
                         .T = rows,
                         .N = columns,
                         .stride = stride};
              if (which & 1) q.y_TN = of(y);
              if (which & 2) q.y_NT = of(transposed);
              return q;
            };
            cpu::run(args([](Mirror& m) { return m.host().span(); }));
            cuda::run(args([](Mirror& m) { return m.device(); }), device_stream());
            REQUIRE(y.same());
            REQUIRE(transposed.same());
            REQUIRE(amax.same());
          });
}

TEST_CASE("delayed scales are the CPU's bits") {
  const int64_t C = 300, L = 5;
  for (auto [most_recent, factor] :
       {std::pair{false, 1.0}, {true, 1.0}, {false, double(NAN)}, {true, double(NAN)}})
    for_each_order([&, most_recent = most_recent, factor = factor] {
      Mirror grad_scale(Array::one(DType::f32, factor));
      Array seen = Array::normal(DType::f32, C, 1), past = Array::normal(DType::f32, C * L, 2);
      for (int64_t i = 0; i < C; ++i) seen.set(i, i % 7 ? std::abs(seen[i]) : 0);
      for (int64_t i = 0; i < C * L; ++i) past.set(i, i < C ? 0 : std::abs(past[i]));
      Mirror amax(seen), history(past), scale(Array::normal(DType::f32, C, 3)),
          inverse(Array(DType::f32, C));
      const auto args = [&](auto&& of) {
        return UpdateScales{.grad_scale = of(grad_scale),
                            .amax_C = of(amax),
                            .history_CL = of(history),
                            .C = C,
                            .L = L,
                            .place = 3,
                            .most_recent = most_recent,
                            .type = DType::f8e4m3,
                            .margin = 1,
                            .scale_C = of(scale),
                            .inverse_C = of(inverse)};
      };
      cpu::run(args([](Mirror& m) { return m.host().span(); }));
      cuda::run(args([](Mirror& m) { return m.device(); }), device_stream());
      REQUIRE(amax.same());
      REQUIRE(history.same());
      REQUIRE(scale.same());
      REQUIRE(inverse.same());
    });
}
