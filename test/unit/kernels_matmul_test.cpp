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
#include "kernels/cpu/matmul_plan.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/openblas.h"
#include "kernels/cpu/peak.h"
#include "kernels/matmul.h"
#include "kernels_testing.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;
using cpu::MatmulWay;

namespace {

// OpenBLAS is loaded once for all tests, while there is one thread, under an environment that it
// must find again.
const struct OpenBlas {
  OpenBlas() {
    for (auto& [name, value] : after) setenv(name, (std::string("sentinel ") + name).c_str(), 1);
    cpu::openblas::load();
    for (auto& [name, value] : after) {
      if (const char* found = std::getenv(name)) value = found;
      unsetenv(name);
    }
  }
  std::vector<std::pair<const char*, std::string>> after{
      {"OPENBLAS_CORETYPE", ""}, {"OPENBLAS_NUM_THREADS", ""}, {"OPENBLAS_L2_SIZE", ""}};
} kOpenBlas;

enum class Extra { none, bias, accumulate };

// A matmul with its operands, and its result in float64.
struct Problem {
  int64_t M, N, K;
  bool trans_a, trans_b;
  Extra extra;
  Array a, b, bias, c;
  std::vector<double> expected;

  Problem(int64_t M, int64_t N, int64_t K, bool trans_a, bool trans_b, Extra extra, DType ta,
          DType tb, DType tc)
      : M(M),
        N(N),
        K(K),
        trans_a(trans_a),
        trans_b(trans_b),
        extra(extra),
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
    if (extra != Extra::accumulate)  // what C held before must not matter
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
  Array result(MatmulWay way) {
    Array into = c;
    cpu::run(args(into), way);
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

std::string describe(const Problem& p, MatmulWay way) {
  return fmt::format("{} M {} N {} K {} {}{} extra {} a {} b {} c {}", cpu::way_name(way), p.M, p.N,
                     p.K, p.trans_a ? "T" : "-", p.trans_b ? "T" : "-", int(p.extra),
                     dtype_name(p.a.dtype()), dtype_name(p.b.dtype()), dtype_name(p.c.dtype()));
}

void check_all_ways(Problem& p, Closeness& close) {
  Array probe = p.c;
  for (MatmulWay way : cpu::ways_of(p.args(probe))) {
    INFO(describe(p, way));
    REQUIRE(close(p.result(way), p.expected, p.rule()) == "");
  }
}

// The ways that promise the same bits for any number of threads.
std::vector<MatmulWay> own_ways(Problem& p) {
  Array probe = p.c;
  std::vector<MatmulWay> ways = cpu::ways_of(p.args(probe));
  std::erase_if(ways, [](MatmulWay w) {
    return w != MatmulWay::own && w != MatmulWay::own_bf16 && w != MatmulWay::own_amx;
  });
  return ways;
}

// A copy that begins on a cache line.
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
              if (extra != Extra::accumulate || tc == DType::f32)
                f(trans_a, trans_b, extra, ta, tb, tc);
}

}  // namespace

TEST_CASE("matmul: every layout and type agrees with float64, every way and instruction set") {
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
        Problem p(s.M, s.N, s.K, ta, tb, extra, a, b, c);
        check_all_ways(p, close);
      });
  });
}

TEST_CASE("matmul: sums cut over k, and results of several blocks") {
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  for_each_isa([&](const char* isa) {
    Closeness close(std::string("matmul, large ") + isa);
    for (bool trans_a : {false, true})
      for (bool trans_b : {false, true})
        for (DType type : kFloats) {
          Problem longest(35, 70, 1301, trans_a, trans_b, Extra::bias, type, type, type);
          check_all_ways(longest, close);
          Problem tall(4200, 5, 7, trans_a, trans_b, Extra::none, type, type, type);
          check_all_ways(tall, close);
          Problem wide(5, 4200, 600, trans_a, trans_b, Extra::none, type, type, type);
          check_all_ways(wide, close);
          Problem sum(30, 40, 1025, trans_a, trans_b, Extra::accumulate, type, type, DType::f32);
          check_all_ways(sum, close);
        }
  });
}

TEST_CASE("matmul: so long a sum that B is packed piece by piece") {
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  Closeness close("matmul, K 8300");
  for (bool trans_b : {false, true})
    for (DType type : kFloats) {
      Problem p(9, 600, 8300, false, trans_b, Extra::bias, type, type, type);
      for (MatmulWay way : own_ways(p)) {
        INFO(describe(p, way));
        REQUIRE(close(p.result(way), p.expected, p.rule()) == "");
      }
    }
}

TEST_CASE("matmul: a result transposed through partial sums of a long k") {
  Problem p(400, 900, 4200, false, true, Extra::none, DType::bf16, DType::bf16, DType::bf16);
  Closeness close("matmul, transposed partial sums");
  for_each_isa([&](const char* isa) {
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      const ThreadPool::Scope scope(&pool);
      INFO(isa << ", " << threads << " threads: " << describe(p, MatmulWay::own));
      REQUIRE(close(p.result(MatmulWay::own), p.expected, p.rule()) == "");
    }
  });
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

TEST_CASE("matmul: own results do not depend on threads or on how M and N are cut") {
  for (DType type : kFloats)
    for (bool trans_a : {false, true})
      for (bool trans_b : {false, true}) {
        Problem p(150, 170, 2101, trans_a, trans_b, Extra::none, type, type, type);
        for (MatmulWay way : own_ways(p)) {
          INFO(describe(p, way));
          const Array alone = p.result(way);
          for (int threads : {2, 3}) {
            ThreadPool pool(threads);
            const ThreadPool::Scope scope(&pool);
            REQUIRE(p.result(way) == alone);
          }
          if (trans_a) continue;
          // Rows 40 .. 149 on their own.
          const int64_t first = 40, rows = p.M - first;
          Array part(type, rows * p.N);
          Matmul m = p.args(part);
          m.M = rows;
          m.a = {m.a.as<char>() + first * p.K * dtype_size(type), rows * p.K, type};
          cpu::run(m, way);
          REQUIRE(part.values() == alone.values(first * p.N));
        }
      }
}

TEST_CASE("matmul: own bits do not depend on where a caller cuts rows or columns, nor on threads") {
  uint64_t drawn = 0;
  const auto random = [&](int64_t begin, int64_t end) {
    return begin + int64_t(uniform_below(7, drawn++, uint64_t(end - begin)));
  };
  for (int round = 0; round < 120; ++round) {
    // Odd sizes; of three K one that is cut in blocks and one that fills whole tiles.
    const int64_t M = random(1, 140), N = random(1, 140);
    const int64_t K = round % 3 == 0   ? random(500, 1700)
                      : round % 3 == 1 ? 32 * random(1, 20)
                                       : random(1, 200);
    const bool trans_a = round & 1, trans_b = round & 2;
    const DType c_type = round & 4 ? DType::bf16 : DType::f32;
    const bool accumulate = c_type == DType::f32 && (round & 8);
    const Array a = Array::normal(DType::bf16, M * K, 1), b = Array::normal(DType::bf16, K * N, 2);
    const Array before = Array::normal(c_type, M * N, 3);
    Array probe = before;
    const Matmul whole{.a = a,
                       .b = b,
                       .c_MN = probe,
                       .M = M,
                       .N = N,
                       .K = K,
                       .trans_a = trans_a,
                       .trans_b = trans_b,
                       .accumulate = accumulate};
    // Rows [i0, i1) and columns [j0, j1) of an operand stored (rows, columns).
    const auto part_of = [](const Array& x, int64_t columns, int64_t i0, int64_t i1, int64_t j0,
                            int64_t j1) {
      Array part(x.dtype(), (i1 - i0) * (j1 - j0));
      for (int64_t i = i0; i < i1; ++i)
        for (int64_t j = j0; j < j1; ++j)
          part.set((i - i0) * (j1 - j0) + j - j0, x[i * columns + j]);
      return part;
    };
    for (MatmulWay way : cpu::ways_of(whole)) {
      if (way != MatmulWay::own && way != MatmulWay::own_bf16 && way != MatmulWay::own_amx)
        continue;
      INFO(cpu::way_name(way) << " M " << M << " N " << N << " K " << K << " transposed " << trans_a
                              << trans_b << " accumulate " << accumulate << " C "
                              << dtype_name(c_type));
      const auto product = [&](Matmul m, Array into, int threads) {
        ThreadPool pool(threads);
        const ThreadPool::Scope scope(&pool);
        m.c_MN = into;
        cpu::run(m, way);
        REQUIRE(into.margin_untouched());
        return into;
      };
      const Array all = product(whole, before, 1);
      // Where tiles can be loaded from an operand on cache lines, they must find the same.
      const OnCacheLines a_lines(a), b_lines(b);
      Matmul on_lines = whole;
      on_lines.a = a_lines.span;
      on_lines.b = b_lines.span;
      REQUIRE(product(on_lines, before, 1) == all);
      for (int cut = 0; cut < 3; ++cut) {
        const int64_t i0 = random(0, M), i1 = random(i0, M) + 1;
        const int64_t j0 = random(0, N), j1 = random(j0, N) + 1;
        const Array a_part = trans_a ? part_of(a, M, 0, K, i0, i1) : part_of(a, K, i0, i1, 0, K);
        const Array b_part = trans_b ? part_of(b, K, j0, j1, 0, K) : part_of(b, N, 0, K, j0, j1);
        Matmul m = whole;
        m.a = a_part;
        m.b = b_part;
        m.M = i1 - i0;
        m.N = j1 - j0;
        const int threads = int(random(1, 5));
        INFO("rows " << i0 << " to " << i1 << ", columns " << j0 << " to " << j1 << ", " << threads
                     << " threads");
        REQUIRE(product(m, part_of(before, N, i0, i1, j0, j1), threads) ==
                part_of(all, N, i0, i1, j0, j1));
      }
    }
  }
}

TEST_CASE("matmul: bf16 as it is takes denormals for zero, everywhere in C alike") {
  Problem probe(1, 1, 1, false, false, Extra::none, DType::bf16, DType::bf16, DType::bf16);
  std::vector<MatmulWay> ways = own_ways(probe);
  const auto expect_offered = [&](MatmulWay way, bool supported) {
    REQUIRE(std::ranges::count(ways, way) == (supported && cpu::isa() == cpu::Isa::avx512));
    if (!supported) WARN(cpu::way_name(way) << " was not tested: not for this build or CPU");
  };
  expect_offered(MatmulWay::own_bf16, cpu::gemm_bf16_supported());
  expect_offered(MatmulWay::own_amx, cpu::gemm_amx_supported());
  std::erase(ways, MatmulWay::own);
  // One full tile and edges on both sides; K is odd, so that half of the last pair is padding.
  const int64_t M = 17, N = 37, K = 5;
  const double tiny = std::ldexp(1.0, -130), small = std::ldexp(1.0, -70);
  for (MatmulWay way : ways)
    for (bool trans_b : {false, true})
      for (DType type : kFloats) {
        Array a(DType::bf16, M * K), b(DType::bf16, K * N), c(type, M * N);
        Matmul m{.a = a, .b = b, .c_MN = c, .M = M, .N = N, .K = K, .trans_b = trans_b};
        for (int64_t i = 0; i < M * K; ++i) a.set(i, tiny);
        for (int64_t i = 0; i < K * N; ++i) b.set(i, 1.0);
        cpu::run(m, way);  // denormal operands
        REQUIRE(c.values() == std::vector<double>(size_t(M * N), 0.0));
        for (int64_t i = 0; i < M * K; ++i) a.set(i, small);
        for (int64_t i = 0; i < K * N; ++i) b.set(i, small);
        cpu::run(m, way);  // denormal products
        REQUIRE(c.values() == std::vector<double>(size_t(M * N), 0.0));
        // NaN and infinity go through, and padding does not make more of them.
        const double inf = std::numeric_limits<double>::infinity();
        for (int64_t i = 0; i < M * K; ++i) a.set(i, i / K == 16 ? inf : 1.0);
        for (int64_t i = 0; i < K * N; ++i) b.set(i, 1.0);
        cpu::run(m, way);
        for (int64_t i = 0; i < M * N; ++i) REQUIRE(c[i] == (i / N == 16 ? inf : double(K)));
      }
}

TEST_CASE("matmul: oneDNN never falls back to its reference implementation") {
  const float* nothing = nullptr;
  for (DType type : kFloats)
    for (bool trans_a : {false, true})
      for (bool trans_b : {false, true})
        for (bool accumulate : {false, true}) {
          const int64_t M = 128, N = 64, K = 96;
          const std::string name =
              cpu::onednn::implementation({.a = nothing,
                                           .b = nothing,
                                           .M = M,
                                           .N = N,
                                           .K = K,
                                           .lda = trans_a ? M : K,
                                           .ldb = trans_b ? K : N,
                                           .ldc = N,
                                           .trans_a = trans_a,
                                           .trans_b = trans_b,
                                           .accumulate = accumulate,
                                           .a_b = type,
                                           .c_type = accumulate ? DType::f32 : type});
          INFO(name << " for " << dtype_name(type) << " " << trans_a << trans_b << accumulate);
          if (type == DType::f32 || cpu::onednn::has_bf16())
            REQUIRE(name.find("ref") == std::string::npos);
        }
}

TEST_CASE("matmul: OpenBLAS takes this CPU's kernels and leaves the environment as it was") {
  for (const auto& [name, value] : kOpenBlas.after)
    REQUIRE(value == std::string("sentinel ") + name);
  if (!cpu::openblas::available()) return;  // optional: without it there is nothing to hold true
  if (cpu::isa_supported(cpu::Isa::avx512) && !std::getenv("MTRAIN_OPENBLAS_CORETYPE")) {
    const std::string core = cpu::openblas::core_name();
    INFO(core);
    REQUIRE((core == "SkylakeX" || core == "Cooperlake"));
  }
}

TEST_CASE("matmul: gelu, its gradient and sums beside a product agree with float64") {
  const int64_t M = 5, N = 7, K = 13;
  const double pi = std::acos(-1.0);
  const auto inner = [&](double x) { return std::sqrt(2 / pi) * (x + 0.044715 * x * x * x); };
  const auto gelu = [&](double x) { return x / 2 * (1 + std::tanh(inner(x))); };
  const auto slope = [&](double x) { return (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6; };
  const Problem p(M, N, K, true, true, Extra::bias, DType::f32, DType::f32, DType::f32);
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

TEST_CASE("matmul plan: measured once, saved, loaded, replaced by the static rule") {
  namespace plan = cpu::matmul_plan;
  plan::clear();
  Problem p(64, 48, 80, true, false, Extra::accumulate, DType::bf16, DType::f32, DType::f32);
  Array c = p.c;
  const Matmul m = p.args(c);
  const MatmulWay way = plan::choose(m);
  REQUIRE(plan::choose(m) == way);
  REQUIRE(plan::save() == fmt::format("64 48 80 1 A-+- bf16 fp32 fp32 {}\n", cpu::way_name(way)));

  plan::load("64 48 80 1 A-+- bf16 fp32 fp32 onednn\n\n7 8 9 1 -B-b fp32 fp32 bf16 own\n");
  REQUIRE(plan::choose(m) == MatmulWay::onednn);
  REQUIRE(plan::save() ==
          "7 8 9 1 -B-b fp32 fp32 bf16 own\n64 48 80 1 A-+- bf16 fp32 fp32 onednn\n");
  plan::use_static_rule(true);
  REQUIRE(plan::choose(m) == MatmulWay::own);
  plan::use_static_rule(false);
  REQUIRE(plan::choose(m) == MatmulWay::onednn);
  // A way that this CPU lacks is left out, not an error.
  plan::load("1 2 3 1 ---- bf16 bf16 fp32 own_bf16\n");
  REQUIRE((plan::save().find("own_bf16") != std::string::npos) == cpu::gemm_bf16_supported());
  for (const char* bad :
       {"64 48 80 1 A-+- bf16 fp32 fp32", "64 48 80 1 A-+- bf16 fp32 fp32 magic",
        "64 x 80 1 A-+- bf16 fp32 fp32 own", "64 48 80 1 ZZZZ bf16 fp32 fp32 own"})
    REQUIRE_THROWS_AS(plan::load(bad), UserError);
  plan::clear();
  REQUIRE(plan::save().empty());
}

TEST_CASE("matmul plan: a way that this machine does not have is measured anew, with one warning") {
  struct Lines : log::Overlay {
    Lines() { log::set_overlay(this); }
    ~Lines() override { log::set_overlay(nullptr); }
    void interrupt(const std::function<void()>& write_line) override { write_line(), ++count; }
    int count = 0;
  };
  namespace plan = cpu::matmul_plan;
  plan::clear();
  // bf16 units do not multiply fp32 on any machine.
  plan::load(
      "64 48 80 1 ---- fp32 fp32 fp32 onednn_bf16\n32 48 80 1 ---- fp32 fp32 fp32 onednn_bf16\n");
  const Lines lines;
  Closeness close("matmul, plan of another machine");
  for (int64_t M : {64, 32, 64}) {
    Problem p(M, 48, 80, false, false, Extra::none, DType::f32, DType::f32, DType::f32);
    Array c = p.c;
    REQUIRE(plan::choose(p.args(c)) != MatmulWay::onednn_bf16);
    cpu::run(p.args(c));
    REQUIRE(close(c, p.expected, p.rule()) == "");
  }
  REQUIRE(plan::save().find("onednn_bf16") == std::string::npos);
  REQUIRE(lines.count == 1);
  plan::clear();
}

TEST_CASE("matmul: two threads at once, with pools of their own and with one pool") {
  cpu::matmul_plan::clear();
  ThreadPool shared(2);
  for (bool one_pool : {false, true}) {
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(2);
    std::vector<Problem> problems;
    for (int i = 0; i < 2; ++i)
      problems.emplace_back(90 + i, 120, 700, false, true, Extra::none, DType::bf16, DType::f32,
                            DType::f32);
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        ThreadPool mine(2);
        const ThreadPool::Scope scope(one_pool ? &shared : &mine);
        Closeness close("matmul, concurrent");
        for (int round = 0; round < 20; ++round) {
          Array c = problems[size_t(i)].c;
          cpu::run(problems[size_t(i)].args(c));
          if (wrong[size_t(i)].empty())
            wrong[size_t(i)] = close(c, problems[size_t(i)].expected, problems[size_t(i)].rule());
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
  if (cpu::gemm_amx_supported() && cpu::isa() == cpu::Isa::avx512)
    REQUIRE(bf16_peak > 2 * peak);  // tiles are 16 times as fast; others may share the core
  REQUIRE(bf16_peak < 10e12);       // 1024 operations in each of 5e9 cycles would be 5e12
}
