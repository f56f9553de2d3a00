// Tests 8-bit matrices with a scale for each block against float64.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/math.h"
#include "kernels/fp8_blocks.h"
#include "kernels/matmul.h"
#include "test/support/kernels_testing.h"

namespace kernels_fp8_blocks_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

using Blocks = ScaleBlocks;
const std::vector<Blocks> kBlocks{Blocks::rows_128, Blocks::square_128, Blocks::rows_32};

// x rounded to the type; base_numbers_test compares the types with a reference.
double stored(DType type, double x) {
  return with_float8(type, [&]<class T>() { return double(float(T(float(x)))); });
}

// An 8-bit matrix (R, K) and the inverses of its scales.
struct Matrix {
  Matrix(DType type, Blocks b, int64_t rows, int64_t columns)
      : blocks(b),
        R(rows),
        K(columns),
        y(type, R * K),
        inverse(block_scale_type(b), block_scales(b, R, K)) {}
  double inverse_at(int64_t i) const {
    return blocks == Blocks::rows_32 ? std::ldexp(1.0, inverse.span().as<uint8_t>()[i] - 127)
                                     : inverse[i];
  }
  double factor(int64_t row, int64_t k) const {
    return inverse_at(block_scale_index(blocks, R, K, row, k / block_length(blocks)));
  }
  double at(int64_t row, int64_t k) const { return y[row * K + k] * factor(row, k); }
  bool margins_untouched() const { return y.margin_untouched() && inverse.margin_untouched(); }

  Blocks blocks;
  int64_t R, K;
  Array y, inverse;
};

// Both forms of x (T, N).
struct Both {
  Both(const Array& x, DType type, Blocks blocks, int64_t T, int64_t N)
      : rows(type, blocks, T, N), transposed(type, blocks, N, round_up(T, block_length(blocks))) {
    cpu::run(QuantizeBlocks{.x_TN = x,
                            .blocks = blocks,
                            .y_TN = rows.y,
                            .inverse_TN = rows.inverse,
                            .y_NT = transposed.y,
                            .inverse_NT = transposed.inverse,
                            .T = T,
                            .N = N,
                            .stride = transposed.K});
  }
  Matrix rows, transposed;
};

// Compares m with the matrix whose element (row, k) is x(row, k), or 0 from `filled` on.
void check_matrix(const Matrix& m, DType type, int64_t filled,
                  const std::function<double(int64_t, int64_t)>& x) {
  const double largest = largest_float8(type);
  const double relative = type == DType::f8e4m3 ? 0x1p-4 : 0x1p-3,
               absolute = type == DType::f8e4m3 ? 0x1p-10 : 0x1p-17;
  const int64_t length = block_length(m.blocks), height = m.blocks == Blocks::square_128 ? 128 : 1;
  std::set<int64_t> used;
  for (int64_t row = 0; row < m.R; ++row)
    for (int64_t k = 0; k < m.K; ++k) {
      const int64_t first = row / height * height, left = k / length * length;
      used.insert(block_scale_index(m.blocks, m.R, m.K, row, k / length));
      const double factor = m.factor(row, k);
      if (row == first && k == left) {
        double amax = 0;
        for (int64_t r = first; r < std::min(m.R, first + height); ++r)
          for (int64_t j = left; j < std::min(filled, left + length); ++j)
            amax = std::max(amax, std::abs(x(r, j)));
        // The least power of two under which the block fits.
        REQUIRE(std::exp2(std::round(std::log2(factor))) == factor);
        if (amax == 0) REQUIRE(factor == 1);
        if (amax > 0) REQUIRE((amax <= largest * factor && amax > largest * factor / 2));
      }
      const double want = k < filled ? x(row, k) : 0, got = m.y[row * m.K + k];
      REQUIRE(got == stored(type, want / factor));
      REQUIRE(std::abs(want - got * factor) <=
              std::max(relative * std::abs(want), absolute * factor));
    }
  for (int64_t i = 0; i < m.inverse.size(); ++i)
    if (!used.contains(i)) REQUIRE(m.inverse_at(i) == 1);
  REQUIRE(m.margins_untouched());
}

// Numbers whose size differs from row to row and from column to column, and two blocks of zeros.
Array uneven(DType dtype, int64_t T, int64_t N, uint64_t key = 3) {
  Array x = Array::normal(dtype, T * N, key);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t n = 0; n < N; ++n)
      x.set(t * N + n,
            t / 32 == 1 && n / 32 == 2 ? 0 : std::ldexp(x[t * N + n], int(t % 5 - n / 32 % 4)));
  return x;
}

}  // namespace

TEST_CASE("a block's scale is the largest power of two that its numbers allow") {
  for (DType dtype : kFloats)
    for (DType type : {DType::f8e4m3, DType::f8e5m2})
      for (Blocks blocks : kBlocks)
        for (auto [T, N] : {std::pair<int64_t, int64_t>{1, 32}, {5, 128}, {64, 96}, {130, 272}}) {
          CAPTURE(dtype, type, int(blocks), T, N);
          const Array x = uneven(dtype, T, N);
          const Both both(x, type, blocks, T, N);
          check_matrix(both.rows, type, N,
                       [&, width = N](int64_t t, int64_t n) { return x[t * width + n]; });
          check_matrix(both.transposed, type, T,
                       [&, width = N](int64_t n, int64_t t) { return x[t * width + n]; });
        }
}

// Calls f(begin, count) for parts that ranks may own: they begin and end within rows and blocks.
template <class F>
void for_parts(int64_t count, const F& f) {
  const std::vector<int64_t> ends{0, count / 7, count / 2, count / 2, count};
  for (size_t i = 1; i < ends.size(); ++i) f(ends[i - 1], ends[i] - ends[i - 1]);
}

TEST_CASE("parts of a matrix, whose maxima are combined, have the bits of the whole") {
  for (DType dtype : kFloats)
    for (DType type : {DType::f8e4m3, DType::f8e5m2})
      for (auto [T, N] : {std::pair<int64_t, int64_t>{1, 32}, {5, 128}, {64, 96}, {130, 272}}) {
        CAPTURE(dtype, type, T, N);
        const Array x = uneven(dtype, T, N);
        const Both whole(x, type, Blocks::square_128, T, N);
        Matrix parts(type, Blocks::square_128, T, N);
        std::fill_n(parts.inverse.span().as<float>(), parts.inverse.size(), 0.0f);
        const auto of_x = [&](int64_t begin, int64_t n) {
          const ConstSpan all = x;
          return ConstSpan{static_cast<const char*>(all.data) + begin * dtype_size(dtype), n,
                           dtype};
        };
        for_parts(T * N, [&, rows = T, columns = N](int64_t begin, int64_t n) {
          cpu::run(AmaxOfPart{
              .x = of_x(begin, n), .amax = parts.inverse, .begin = begin, .R = rows, .K = columns});
        });
        cpu::run(InversesOfAmax{.inverse = parts.inverse, .type = type});
        for_parts(T * N, [&, rows = T, columns = N](int64_t begin, int64_t n) {
          const Span y = parts.y;
          cpu::run(QuantizePart{.x = of_x(begin, n),
                                .inverse = parts.inverse,
                                .y = {static_cast<char*>(y.data) + begin, n, type},
                                .begin = begin,
                                .R = rows,
                                .K = columns});
        });
        REQUIRE(std::memcmp(parts.y.span().data, whole.rows.y.span().data, size_t(T * N)) == 0);
        Matrix transposed(type, Blocks::square_128, N, whole.transposed.K);
        cpu::run(TransposeInverses{.inverse_TN = parts.inverse,
                                   .inverse_NT = transposed.inverse,
                                   .T = T,
                                   .N = N,
                                   .stride = whole.transposed.K});
        for (int64_t i = 0; i < parts.inverse.size(); ++i)
          REQUIRE(parts.inverse[i] == whole.rows.inverse[i]);
        for (int64_t i = 0; i < transposed.inverse.size(); ++i)
          REQUIRE(transposed.inverse[i] == whole.transposed.inverse[i]);
        REQUIRE((parts.margins_untouched() && transposed.margins_untouched()));
      }
}

TEST_CASE("numbers that are not finite stay faults and do not count for a scale") {
  for (Blocks blocks : kBlocks) {
    Array x = Array::normal(DType::f32, 128 * 128, 1);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, 1);
    x.set(0, INFINITY), x.set(5, NAN);
    const Both both(x, DType::f8e4m3, blocks, 128, 128);
    REQUIRE((std::isnan(both.rows.y[0]) && std::isnan(both.rows.y[5])));
    REQUIRE((std::isnan(both.transposed.y[0]) && std::isnan(both.transposed.y[5 * 128])));
    REQUIRE(both.rows.factor(0, 0) == 0x1p-8);  // 1 becomes 256
    REQUIRE(both.rows.at(0, 1) == 1);
  }
  // The smallest and the largest numbers have scales that are finite, too.
  for (double size : {1e-45, 1e-38, 3e38})
    for (Blocks blocks : kBlocks) {
      CAPTURE(size, int(blocks));
      Array x(DType::f32, 32);
      x.set(7, size);
      const Both both(x, DType::f8e4m3, blocks, 1, 32);
      REQUIRE(std::isfinite(both.rows.at(0, 7)));
      if (size > 1e-40) REQUIRE(both.rows.at(0, 7) == Approx(size).epsilon(0.07));
    }
}

// Scales must not depend on how tensor parallelism divides a weight.
TEST_CASE("the blocks of a rank's part are the blocks of the whole") {
  const int64_t O = 256, I = 384;
  for (Blocks blocks : kBlocks) {
    const Array x = uneven(DType::bf16, O, I);
    const Both whole(x, DType::f8e4m3, blocks, O, I);
    const auto part = [&](int64_t row0, int64_t rows, int64_t column0, int64_t columns) {
      CAPTURE(int(blocks), row0, column0);
      Array own(DType::bf16, rows * columns);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          own.set(r * columns + c, x[(row0 + r) * I + column0 + c]);
      const Both mine(own, DType::f8e4m3, blocks, rows, columns);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          REQUIRE(mine.rows.y[r * columns + c] == whole.rows.y[(row0 + r) * I + column0 + c]);
          REQUIRE(mine.rows.factor(r, c) == whole.rows.factor(row0 + r, column0 + c));
          REQUIRE(mine.transposed.at(c, r) == whole.transposed.at(column0 + c, row0 + r));
        }
    };
    part(128, 128, 0, I);  // column-parallel
    part(0, O, 128, 256);  // row-parallel
  }
}

TEST_CASE("8-bit GEMMs under scales of blocks equal those of the numbers that operands represent") {
  const int64_t M = 20, N = 48, K = 256;
  const Array x = uneven(DType::f32, M, K), w = uneven(DType::f32, N, K, 5);
  const Array bias = Array::normal(DType::bf16, N, 3);
  for (auto [of_a, of_b] : {std::pair{Blocks::rows_128, Blocks::square_128},
                            {Blocks::square_128, Blocks::rows_128},
                            {Blocks::rows_128, Blocks::rows_128},
                            {Blocks::rows_32, Blocks::rows_32}})
    for (auto [ta, tb] : {std::pair{DType::f8e4m3, DType::f8e4m3}, {DType::f8e5m2, DType::f8e4m3}})
      for (DType tc : kFloats)
        for (int extra : {0, 1, 2}) {  // nothing, a bias, accumulation
          if (extra == 2 && tc != DType::f32) continue;
          CAPTURE(int(of_a), int(of_b), ta, tb, tc, extra);
          const Matrix a = Both(x, ta, of_a, M, K).rows, b = Both(w, tb, of_b, N, K).rows;
          Array c = Array::normal(tc, M * N, 4);
          std::vector<double> want(size_t(M * N));
          double scale = 0;
          for (int64_t m = 0; m < M; ++m)
            for (int64_t n = 0; n < N; ++n) {
              double sum = 0;
              for (int64_t k = 0; k < K; ++k) {
                sum += a.at(m, k) * b.at(n, k);
                scale = std::max(scale, std::abs(a.at(m, k) * b.at(n, k)));
              }
              want[size_t(m * N + n)] = sum + (extra == 1   ? bias[n]
                                               : extra == 2 ? c[m * N + n]
                                                            : 0);
            }
          Matmul p{.a = a.y,
                   .b = b.y,
                   .c_MN = c,
                   .M = M,
                   .N = N,
                   .K = K,
                   .trans_b = true,
                   .accumulate = extra == 2,
                   .a_inverse = a.inverse,
                   .b_inverse = b.inverse,
                   .a_blocks = of_a,
                   .b_blocks = of_b};
          if (extra == 1) p.bias_N = bias;
          cpu::run(p);
          Closeness close("8-bit GEMM in blocks to " + std::string(dtype_name(tc)));
          REQUIRE(close(c, want,
                        {.dtype = tc, .K = double(K), .scale = scale, .sums = DType::f32}) == "");
        }
}

TEST_CASE("operands whose blocks do not fit each other are refused") {
  const int64_t M = 16, N = 128, K = 256;
  const Array x = uneven(DType::f32, M, K), w = uneven(DType::f32, N, K, 5);
  const auto multiply = [&](Blocks of_a, Blocks of_b, int64_t length) {
    const Matrix a = Both(x, DType::f8e4m3, of_a, M, K).rows,
                 b = Both(w, DType::f8e4m3, of_b, N, K).rows;
    Array c(DType::f32, M * N);
    cpu::run(Matmul{.a = a.y,
                    .b = b.y,
                    .c_MN = c,
                    .M = M,
                    .N = N,
                    .K = length,
                    .trans_b = true,
                    .a_inverse = a.inverse,
                    .b_inverse = b.inverse,
                    .a_blocks = of_a,
                    .b_blocks = of_b});
  };
  REQUIRE_NOTHROW(multiply(Blocks::rows_128, Blocks::square_128, K));
  REQUIRE_THROWS_AS(multiply(Blocks::square_128, Blocks::square_128, K), BugError);
  REQUIRE_THROWS_AS(multiply(Blocks::rows_32, Blocks::rows_128, K), BugError);
  REQUIRE_THROWS_AS(multiply(Blocks::rows_128, Blocks::rows_128, K - 64), BugError);
  REQUIRE_NOTHROW(multiply(Blocks::rows_32, Blocks::rows_32, K - 64));
}

}  // namespace kernels_fp8_blocks_test
