#include <cmath>

#include "kernels/fp8_blocks.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

// Returns numbers of many magnitudes, including infinities, NaN, zeros and denormals.
Array numbers(DType type, int64_t n) {
  Array x = Array::normal(type, n, 1);
  for (int64_t i = 0; i < n; ++i) x.set(i, std::ldexp(x[i], int(i / 37 % 23) - 15));
  const std::vector<double> special{INFINITY, -INFINITY, NAN, 1e30, 0x1p-9, 448, 1e-40, 0.0};
  for (int64_t i = 0; i < n && i < int64_t(special.size()); ++i)
    x.set((i * 7 + 3) % n, special[size_t(i)]);
  for (int64_t i = n / 2; i < n / 2 + 300 && i < n; ++i) x.set(i, 0);
  return x;
}

struct Case {
  DType dtype, type;
  std::vector<int> forms;  // 1: rows, 2: transpose, 3: both
};
const std::vector<Case> kCases{{DType::bf16, DType::f8e4m3, {1, 2, 3}},
                               {DType::bf16, DType::f8e5m2, {3}},
                               {DType::f32, DType::f8e4m3, {3}},
                               {DType::f16, DType::f8e5m2, {3}}};

}  // namespace

TEST_CASE("tensors quantized in blocks, their transposes and their scales are the CPU's bits") {
  for (auto [T, N] : {std::pair<int64_t, int64_t>{1, 16},
                      {5, 128},
                      {33, 208},
                      {130, 144},
                      {128, 640},  // five blocks: three of a row of squares are beyond the matrix
                      {size_of_test(70, 2048), size_of_test(136, 4096)}})
    for (const Case& c : kCases)
      for (ScaleBlocks blocks :
           {ScaleBlocks::rows_128, ScaleBlocks::square_128, ScaleBlocks::rows_32})
        for (int form : c.forms)
          for_each_way([&](int64_t offset) {
            CAPTURE(T, N, c.dtype, c.type, int(blocks), form, offset);
            const int64_t length = block_length(blocks),
                          stride = (T + length - 1) / length * length;
            const auto inverses = [&](int64_t R, int64_t K) {
              Array a(block_scale_type(blocks), block_scales(blocks, R, K));
              std::memset(a.span().data, 0x33, size_t(a.span().bytes()));
              return a;
            };
            Mirror x(numbers(c.dtype, T * N), offset), y(Array(c.type, T * N), offset),
                transposed(Array::normal(c.type, N * stride, 2)), inverse(inverses(T, N)),
                transposed_inverse(inverses(N, stride));
            const auto args = [&, rows = T, columns = N](auto&& of) {
              QuantizeBlocks q{.x_TN = of(x), .blocks = blocks, .T = rows, .N = columns};
              if (form & 1) q.y_TN = of(y), q.inverse_TN = of(inverse);
              if (form & 2)
                q.y_NT = of(transposed), q.inverse_NT = of(transposed_inverse), q.stride = stride;
              return q;
            };
            cpu::run(args([](Mirror& m) { return m.host().span(); }));
            cuda::run(args([](Mirror& m) { return m.device(); }), device_stream());
            REQUIRE(y.same());
            REQUIRE(inverse.same());
            REQUIRE(transposed.same());
            REQUIRE(transposed_inverse.same());
          });
}

TEST_CASE("parts of a matrix under square blocks are quantized with the CPU's bits") {
  for (auto [T, N] : {std::pair<int64_t, int64_t>{1, 16},
                      {33, 208},
                      {130, 144},
                      {128, 640},
                      {size_of_test(70, 2048), size_of_test(136, 4096)}})
    for (const Case& c : kCases)
      for (auto [begin, count] : {std::pair<int64_t, int64_t>{0, T * N},
                                  {T * N / 7, T * N / 2},
                                  {T * N / 4 / 4 * 4, T * N / 2 / 4 * 4},
                                  {T * N / 3, 1},
                                  {T * N, 0}})
        for_each_way([&](int64_t offset) {
          CAPTURE(T, N, c.dtype, c.type, begin, count, offset);
          const int64_t stride = (T + 127) / 128 * 128,
                        scales = block_scales(ScaleBlocks::square_128, T, N);
          Mirror x(numbers(c.dtype, count), offset), y(Array(c.type, count), offset),
              inverse(Array(DType::f32, scales)),
              transposed(Array(DType::f32, block_scales(ScaleBlocks::square_128, N, stride)));
          const auto run = [&, rows = T, columns = N, first = begin](const auto& of,
                                                                     const auto& launch) {
            launch(AmaxOfPart{
                .x = of(x), .amax = of(inverse), .begin = first, .R = rows, .K = columns});
            launch(InversesOfAmax{.inverse = of(inverse), .type = c.type});
            launch(QuantizePart{.x = of(x),
                                .inverse = of(inverse),
                                .y = of(y),
                                .begin = first,
                                .R = rows,
                                .K = columns});
            launch(TransposeInverses{.inverse_TN = of(inverse),
                                     .inverse_NT = of(transposed),
                                     .T = rows,
                                     .N = columns,
                                     .stride = stride});
          };
          run([](Mirror& m) { return m.host().span(); }, [](const auto& a) { cpu::run(a); });
          run([](Mirror& m) { return m.device(); },
              [](const auto& a) { cuda::run(a, device_stream()); });
          REQUIRE(y.same());
          REQUIRE(inverse.same());
          REQUIRE(transposed.same());
        });
}
