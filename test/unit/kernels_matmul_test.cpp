#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/matmul_backend.h"
#include "kernels/cpu/peak.h"
#include "kernels/matmul.h"
#include "test/support/kernels_testing.h"

namespace kernels_matmul_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;
using cpu::MatmulBackend;

namespace {

enum class Extra { none, bias, accumulate };

// The operands of a matmul, and its result in float64.
struct MatmulProblem {
  int64_t M, N, K;
  bool trans_a, trans_b;
  Extra extra;
  Array a, b, bias, c;
  std::vector<double> expected;

  MatmulProblem(int64_t rows, int64_t columns, int64_t inner, bool transposes_a, bool transposes_b,
                Extra beside, DType ta, DType tb, DType tc)
      : M(rows),
        N(columns),
        K(inner),
        trans_a(transposes_a),
        trans_b(transposes_b),
        extra(beside),
        a(Array::normal(ta, M * K, 1)),
        b(Array::normal(tb, K * N, 2)),
        bias(Array::normal(ta, N, 3)),
        c(Array::normal(tc, M * N, 4)),
        expected(size_t(M * N)) {
    const auto av = a.values(), bv = b.values();
    for (int64_t i = 0; i < M; ++i)
      for (int64_t j = 0; j < N; ++j) {
        double sum = extra == Extra::bias ? bias[j] : extra == Extra::accumulate ? c[i * N + j] : 0;
        for (int64_t k = 0; k < K; ++k)
          sum += av[size_t(trans_a ? k * M + i : i * K + k)] *
                 bv[size_t(trans_b ? j * K + k : k * N + j)];
        expected[size_t(i * N + j)] = sum;
      }
    if (extra != Extra::accumulate)  // earlier content of C must not matter
      for (int64_t i = 0; i < M * N; ++i) c.set(i, std::numeric_limits<double>::quiet_NaN());
  }
  Matmul args(Array& into) {
    return {.a = a,
            .b = b,
            .bias_N = extra == Extra::bias ? ConstSpan(bias) : ConstSpan{},
            .c_MN = into,
            .M = M,
            .N = N,
            .K = K,
            .trans_a = trans_a,
            .trans_b = trans_b,
            .accumulate = extra == Extra::accumulate};
  }
  Array result(MatmulBackend backend) {
    Array into = c;
    cpu::run(args(into), backend);
    REQUIRE(into.margin_untouched());
    return into;
  }
  // Operands are normal numbers of deviation 1, so a running sum over k stays below four
  // deviations, 4 sqrt(K), and every one of the K additions rounds at that size: the rule's scale.
  // The sum is rounded once more to C's type.
  Rule rule() const {
    return {
        .dtype = c.dtype(), .K = double(K), .scale = 4 * std::sqrt(double(K)), .sums = DType::f32};
  }
};

// Rows [row0, row1) and columns [column0, column1) of C, with the parts of the operands that they
// need.
class Piece {
 public:
  Piece(const MatmulProblem& p, int64_t row0, int64_t row1, int64_t column0, int64_t column1)
      : p_(p),
        row0_(row0),
        column0_(column0),
        M_(row1 - row0),
        N_(column1 - column0),
        a_(p.trans_a ? block(p.a, p.M, 0, p.K, row0, M_) : block(p.a, p.K, row0, M_, 0, p.K)),
        b_(p.trans_b ? block(p.b, p.K, column0, N_, 0, p.K) : block(p.b, p.N, 0, p.K, column0, N_)),
        bias_(block(p.bias, p.N, 0, 1, column0, N_)),
        c_(block(p.c, p.N, row0, M_, column0, N_)) {}
  Matmul args() {
    return {.a = a_,
            .b = b_,
            .bias_N = p_.extra == Extra::bias ? ConstSpan(bias_) : ConstSpan{},
            .c_MN = c_,
            .M = M_,
            .N = N_,
            .K = p_.K,
            .trans_a = p_.trans_a,
            .trans_b = p_.trans_b,
            .accumulate = p_.extra == Extra::accumulate};
  }
  bool is_within(const Array& whole) const {
    return c_ == block(whole, p_.N, row0_, M_, column0_, N_);
  }

 private:
  static Array block(const Array& x, int64_t ld, int64_t row, int64_t rows, int64_t column,
                     int64_t columns) {
    std::vector<double> values;
    for (int64_t i = row; i < row + rows; ++i)
      for (int64_t j = column; j < column + columns; ++j) values.push_back(x[i * ld + j]);
    return Array(x.dtype(), values);
  }
  const MatmulProblem& p_;
  int64_t row0_, column0_, M_, N_;
  Array a_, b_, bias_, c_;
};

std::string describe(const MatmulProblem& p, MatmulBackend backend) {
  return fmt::format("{} M {} N {} K {} {}{} extra {} a {} b {} c {}", cpu::backend_name(backend),
                     p.M, p.N, p.K, p.trans_a ? "T" : "-", p.trans_b ? "T" : "-", int(p.extra),
                     dtype_name(p.a.dtype()), dtype_name(p.b.dtype()), dtype_name(p.c.dtype()));
}

std::vector<MatmulBackend> backends_of(MatmulProblem& p) {
  Array probe = p.c;
  return cpu::available_backends(p.args(probe));
}

void check_all_backends(MatmulProblem& p, Closeness& close) {
  for (MatmulBackend backend : backends_of(p)) {
    INFO(describe(p, backend));
    REQUIRE(close(p.result(backend), p.expected, p.rule()) == "");
  }
}

// A copy of an array that begins on a cache line.
struct OnCacheLines {
  explicit OnCacheLines(const Array& x) : memory(size_t(x.size() * dtype_size(x.dtype()) + 64)) {
    void* data = memory.data();
    size_t space = memory.size();
    std::align(64, space - 64, data, space);
    std::memcpy(data, ConstSpan(x).data, memory.size() - 64);
    span = {data, x.size(), x.dtype()};
  }
  std::vector<char> memory;
  ConstSpan span;
};

template <class F>
void for_each_combination(const F& f) {
  for (bool trans_a : {false, true})
    for (bool trans_b : {false, true})
      for (DType ta : kFloats)
        for (DType tb : kFloats)
          for (DType tc : kFloats)
            for (Extra extra : {Extra::none, Extra::bias, Extra::accumulate})
              if ((extra != Extra::accumulate || tc == DType::f32) && can_meet(ta, tb, tc))
                f(trans_a, trans_b, extra, ta, tb, tc);
}

}  // namespace

TEST_CASE("matmul: every layout and type agrees with float64, every backend and instruction set") {
  struct Size {
    int64_t M, N, K;
  };
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  for_each_isa([&](const char* isa) {
    Closeness close(std::string("matmul ") + isa);
    for (Size s : {Size{1, 1, 1}, Size{1, 17, 3}, Size{3, 1, 129}, Size{17, 33, 17},
                   Size{3, 129, 16}, Size{31, 20, 64}, Size{129, 65, 33}, Size{30, 50, 95}})
      for_each_combination([&](bool ta, bool tb, Extra extra, DType a, DType b, DType c) {
        MatmulProblem p(s.M, s.N, s.K, ta, tb, extra, a, b, c);
        check_all_backends(p, close);
      });
  });
}

TEST_CASE("matmul: sums split over k, and results of several blocks") {
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  for_each_isa([&](const char* isa) {
    Closeness close(std::string("matmul, large ") + isa);
    for (bool trans_a : {false, true})
      for (bool trans_b : {false, true})
        for (DType type : kFloats) {
          MatmulProblem longest(35, 70, 1301, trans_a, trans_b, Extra::bias, type, type, type);
          check_all_backends(longest, close);
          MatmulProblem tall(4200, 5, 7, trans_a, trans_b, Extra::none, type, type, type);
          check_all_backends(tall, close);
          MatmulProblem wide(5, 4200, 600, trans_a, trans_b, Extra::none, type, type, type);
          check_all_backends(wide, close);
          MatmulProblem sum(30, 40, 1025, trans_a, trans_b, Extra::accumulate, type, type,
                            DType::f32);
          check_all_backends(sum, close);
        }
  });
}

TEST_CASE("matmul: so long a sum that B is packed piece by piece") {
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  Closeness close("matmul, K 8300");
  for (bool trans_b : {false, true})
    for (DType type : kFloats) {
      MatmulProblem p(9, 600, 8300, false, trans_b, Extra::bias, type, type, type);
      for (MatmulBackend backend : backends_of(p)) {
        INFO(describe(p, backend));
        REQUIRE(close(p.result(backend), p.expected, p.rule()) == "");
      }
    }
}

TEST_CASE("matmul: a result transposed through partial sums of a long k") {
  // The rows are so few that every instruction set computes the transposed GEMM, with k split
  // within a unit of work. The k is so long that B is packed piece by piece.
  for (int64_t K : {2100, 8300}) {
    MatmulProblem p(180, 600, K, false, true, Extra::none, DType::bf16, DType::bf16, DType::bf16);
    Closeness close(fmt::format("matmul, transposed partial sums, K {}", K));
    for_each_isa([&](const char* isa) {
      for (MatmulBackend backend : backends_of(p)) {
        const Array alone = p.result(backend);
        for (int threads : {1, 3}) {
          ThreadPool pool(threads);
          const ThreadPool::Scope scope(&pool);
          INFO(isa << ", " << threads << " threads: " << describe(p, backend));
          const Array got = p.result(backend);
          REQUIRE(close(got, p.expected, p.rule()) == "");
          REQUIRE(got == alone);
        }
      }
    });
  }
}

TEST_CASE("matmul: an empty sum is zero or the bias, an empty result is nothing") {
  Array a(DType::f32, 0), b(DType::f32, 0), bias = Array::normal(DType::f32, 3, 1);
  Array c = Array::normal(DType::f32, 6, 2);
  const auto before = c.values();
  cpu::run(Matmul{.a = a, .b = b, .c_MN = c, .M = 2, .N = 3, .K = 0, .accumulate = true});
  REQUIRE(c.values() == before);
  cpu::run(Matmul{.a = a, .b = b, .bias_N = bias, .c_MN = c, .M = 2, .N = 3, .K = 0});
  REQUIRE(c.values(3) == bias.values());
  cpu::run(Matmul{.a = a, .b = b, .c_MN = c, .M = 2, .N = 3, .K = 0});
  REQUIRE(c.values() == std::vector<double>(6, 0.0));
  cpu::run(Matmul{.a = a, .b = b, .c_MN = c, .M = 0, .N = 3, .K = 0});
}

TEST_CASE("matmul: results do not depend on threads or on how M and N are split") {
  for (DType type : kFloats)
    for (bool trans_a : {false, true})
      for (bool trans_b : {false, true}) {
        MatmulProblem p(150, 170, 2101, trans_a, trans_b, Extra::none, type, type, type);
        for (MatmulBackend backend : backends_of(p)) {
          INFO(describe(p, backend));
          const Array alone = p.result(backend);
          for (int threads : {2, 3}) {
            ThreadPool pool(threads);
            const ThreadPool::Scope scope(&pool);
            REQUIRE(p.result(backend) == alone);
          }
          if (trans_a) continue;
          // Rows 40 .. 149 on their own.
          const int64_t first = 40, rows = p.M - first;
          Array part(type, rows * p.N);
          Matmul m = p.args(part);
          m.M = rows;
          m.a = {m.a.as<char>() + first * p.K * dtype_size(type), rows * p.K, type};
          cpu::run(m, backend);
          REQUIRE(part.values() == alone.values(first * p.N));
        }
      }
}

TEST_CASE("matmul: few rows on their own have the bits that they have among many") {
  constexpr int64_t kMany = 40;
  for (const auto& [a_type, b_type, c_type] : {std::tuple{DType::f32, DType::f32, DType::f32},
                                               {DType::bf16, DType::bf16, DType::bf16},
                                               {DType::f32, DType::f16, DType::f32},
                                               {DType::bf16, DType::f32, DType::f32},
                                               {DType::f16, DType::f16, DType::f32}})
    for (const int64_t K : {1, 7, 16, 384, 769, 2101})
      for (const int64_t N : {1, 15, 16, 37, 170})
        for (const bool with_bias : {false, true}) {
          const Array a = Array::normal(a_type, kMany * K, 1), b = Array::normal(b_type, N * K, 2),
                      bias = Array::normal(b_type, N, 3);
          for_each_isa([&](const char* isa) {
            INFO(isa << " N " << N << " K " << K << ' ' << dtype_name(b_type) << with_bias);
            Matmul m{.a = a, .b = b, .N = N, .K = K, .trans_b = true};
            if (with_bias) m.bias_N = bias;
            Array many(c_type, kMany * N);
            m.c_MN = many, m.M = kMany;
            cpu::run(m, MatmulBackend::native);
            for (int64_t M = 1; M <= 10; ++M) {
              Array few(c_type, M * N);
              m.c_MN = few, m.M = M;
              cpu::run(m, MatmulBackend::native);
              REQUIRE(few.values() == many.values(0, M * N));
              REQUIRE(few.margin_untouched());
            }
          });
        }
}

TEST_CASE(
    "matmul: any cut of rows and columns, on 1 to 4 threads, gives the whole product's bits") {
  uint64_t drawn = 0;
  const auto draw = [&](int64_t least, int64_t most) {
    return least + int64_t(uniform_below(17, drawn++, uint64_t(most - least + 1)));
  };
  // Borders of 1 to 4 pieces of n.
  const auto borders = [&](int64_t n) {
    std::vector<int64_t> at{0, n};
    for (int64_t i = draw(0, 3); i > 0; --i) at.push_back(draw(0, n));
    std::ranges::sort(at);
    return at;
  };
  for_each_isa([&](const char* isa) {
    for_each_combination([&](bool ta, bool tb, Extra extra, DType a, DType b, DType c) {
      // Some sums are longer than a block of k, and some GEMMs have few rows or columns.
      const int64_t M = draw(0, 2) ? draw(1, 150) : draw(1, 12),
                    N = draw(0, 2) ? draw(1, 150) : draw(1, 12),
                    K = draw(0, 3) == 0 ? draw(500, 1700)
                        : draw(0, 1)    ? draw(1, 300)
                                        : 32 * draw(1, 20);  // full AMX tiles
      MatmulProblem p(M, N, K, ta, tb, extra, a, b, c);
      for (MatmulBackend backend : backends_of(p)) {
        INFO(isa << ": " << describe(p, backend));
        const Array whole = p.result(backend);
        // Tiles that are loaded directly from an operand on cache lines must give the same result.
        const OnCacheLines a_lines(p.a), b_lines(p.b);
        Array again = p.c;
        Matmul on_lines = p.args(again);
        on_lines.a = a_lines.span, on_lines.b = b_lines.span;
        cpu::run(on_lines, backend);
        REQUIRE(again == whole);
        ThreadPool pool(int(draw(1, 4)));
        const ThreadPool::Scope scope(&pool);
        const auto rows = borders(M), columns = borders(N);
        for (size_t i = 1; i < rows.size(); ++i)
          for (size_t j = 1; j < columns.size(); ++j) {
            Piece piece(p, rows[i - 1], rows[i], columns[j - 1], columns[j]);
            CAPTURE(rows[i - 1], rows[i], columns[j - 1], columns[j], pool.threads());
            cpu::run(piece.args(), backend);
            REQUIRE(piece.is_within(whole));
          }
      }
    });
  });
}

TEST_CASE("matmul: bf16 as it is takes denormals for zero, everywhere in C alike") {
  MatmulProblem probe(1, 1, 1, false, false, Extra::none, DType::bf16, DType::bf16, DType::bf16);
  std::vector<MatmulBackend> backends = backends_of(probe);
  for (const auto& [backend, arithmetic] :
       {std::pair(MatmulBackend::native_bf16, Bf16Arithmetic::dot_products),
        std::pair(MatmulBackend::native_amx, Bf16Arithmetic::tiles)}) {
    REQUIRE(std::ranges::count(backends, backend) == cpu::supports(arithmetic));
    if (!cpu::supports(arithmetic))
      WARN(cpu::backend_name(backend) << " was not tested: not for this build or CPU");
  }
  std::erase(backends, MatmulBackend::native);
  // One full tile and edges on both sides; K is odd, so that half of the last pair is padding.
  const int64_t M = 17, N = 37, K = 5;
  const double tiny = std::ldexp(1.0, -130), small = std::ldexp(1.0, -70);
  for (MatmulBackend backend : backends)
    for (bool trans_b : {false, true})
      for (DType type : {DType::f32, DType::bf16}) {
        Array a(DType::bf16, M * K), b(DType::bf16, K * N), c(type, M * N);
        Matmul m{.a = a, .b = b, .c_MN = c, .M = M, .N = N, .K = K, .trans_b = trans_b};
        for (int64_t i = 0; i < M * K; ++i) a.set(i, tiny);
        for (int64_t i = 0; i < K * N; ++i) b.set(i, 1.0);
        cpu::run(m, backend);  // denormal operands
        REQUIRE(c.values() == std::vector<double>(size_t(M * N), 0.0));
        for (int64_t i = 0; i < M * K; ++i) a.set(i, small);
        for (int64_t i = 0; i < K * N; ++i) b.set(i, small);
        cpu::run(m, backend);  // denormal products
        REQUIRE(c.values() == std::vector<double>(size_t(M * N), 0.0));
        // NaN and infinity appear in the result, and padding does not create others.
        const double inf = std::numeric_limits<double>::infinity();
        for (int64_t i = 0; i < M * K; ++i) a.set(i, i / K == 16 ? inf : 1.0);
        for (int64_t i = 0; i < K * N; ++i) b.set(i, 1.0);
        cpu::run(m, backend);
        for (int64_t i = 0; i < M * N; ++i) REQUIRE(c[i] == (i / N == 16 ? inf : double(K)));
      }
}

TEST_CASE("matmul: gelu, its gradient and sums in the epilogue agree with float64") {
  const int64_t M = 5, N = 7, K = 13;
  const double pi = std::acos(-1.0);
  const auto inner = [&](double x) { return std::sqrt(2 / pi) * (x + 0.044715 * x * x * x); };
  const auto gelu = [&](double x) { return x / 2 * (1 + std::tanh(inner(x))); };
  const auto slope = [&](double x) { return (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6; };
  const MatmulProblem p(M, N, K, true, true, Extra::bias, DType::f32, DType::f32, DType::f32);
  Array product(DType::f32, M * N), y(DType::f32, M * N), sums = Array::normal(DType::f32, M, 9);
  const Array before = sums, at = Array::normal(DType::f32, M * N, 8);
  const Matmul m{.a = p.a,
                 .b = p.b,
                 .bias_N = p.bias,
                 .c_MN = y,
                 .M = M,
                 .N = N,
                 .K = K,
                 .trans_a = true,
                 .trans_b = true};
  Closeness close("matmul epilogues");
  const auto expect = [&](const Array& got, const auto& of) {
    std::vector<double> want(size_t(got.size()));
    for (int64_t i = 0; i < got.size(); ++i) want[size_t(i)] = of(i);
    REQUIRE(close(got, want, {.dtype = DType::f32, .K = double(K), .scale = 8}) == "");
  };
  const auto whole = [&](int64_t i) { return p.expected[size_t(i)]; };
  Matmul forward = m;
  forward.gelu_input_MN = product;
  cpu::run(forward);
  expect(product, whole);
  expect(y, [&](int64_t i) { return gelu(whole(i)); });
  Matmul backward = m;
  backward.dgelu_of_MN = at;
  cpu::run(backward);
  expect(y, [&](int64_t i) { return whole(i) * slope(at[i]); });
  Matmul with_sums = m;
  with_sums.a_sums_M = sums;
  cpu::run(with_sums);
  expect(y, whole);
  expect(sums, [&](int64_t row) {  // a is stored (K, M)
    double sum = before[row];
    for (int64_t k = 0; k < K; ++k) sum += p.a[k * M + row];
    return sum;
  });
  with_sums.gelu_input_MN = product;
  REQUIRE_THROWS_AS(cpu::run(with_sums), BugError);
}

TEST_CASE("matmul: two threads at once, with pools of their own and with one pool") {
  ThreadPool shared(2);
  for (bool one_pool : {false, true}) {
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(2);
    std::vector<MatmulProblem> diagnostics;
    for (int i = 0; i < 2; ++i)
      diagnostics.emplace_back(90 + i, 120, 700, false, true, Extra::none, DType::bf16, DType::f32,
                               DType::f32);
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        ThreadPool mine(2);
        const ThreadPool::Scope scope(one_pool ? &shared : &mine);
        Closeness close("matmul, concurrent");
        for (int round = 0; round < 20; ++round) {
          Array c = diagnostics[size_t(i)].c;
          cpu::run(diagnostics[size_t(i)].args(c));
          if (wrong[size_t(i)].empty())
            wrong[size_t(i)] =
                close(c, diagnostics[size_t(i)].expected, diagnostics[size_t(i)].rule());
        }
      });
    for (auto& t : threads) t.join();
    REQUIRE(wrong[0] == "");
    REQUIRE(wrong[1] == "");
  }
}

TEST_CASE("peak: the measured peak is one that a core can have") {
  ThreadPool pool(1);
  const ThreadPool::Scope scope(&pool);
  const double peak = cpu::measure_peak_flops();
  REQUIRE(peak > 1e9);   // any CPU of the last 15 years
  REQUIRE(peak < 1e12);  // one core: 64 lanes at 5 GHz would be 640e9
  const double bf16_peak = cpu::measure_peak_flops(DType::bf16);
  if (cpu::supports(Bf16Arithmetic::tiles))
    REQUIRE(bf16_peak > 2 * peak);  // tiles are 16 times as fast; others may share the core
  REQUIRE(bf16_peak < 10e12);       // 1024 operations in each of 5e9 cycles would be 5e12
}

}  // namespace kernels_matmul_test
