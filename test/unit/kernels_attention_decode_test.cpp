#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "attention_reference.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/attention_decode.h"
#include "test/support/kernels_testing.h"

namespace kernels_attention_decode_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

// Rows of the cache that each query sees: one row, blocks with and without a remainder, shared
// rows.
const std::vector<int32_t> kStart = {0, 3, 40, 5, 599}, kEnd = {1, 20, 600, 261, 600};
constexpr int64_t kRows = 600;
const std::vector<int64_t> kWindows = {0, 1, 70, 300};

struct Case {
  int64_t A, G, D;
  float cap = 0, scale = 0;
  int64_t Dv = 0;  // 0: D
  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
  int64_t kv_width() const { return G * (D + value_dim()); }
  int64_t width() const { return A * D + kv_width(); }
  float scale_of() const { return scale > 0 ? scale : 1 / std::sqrt(float(D)); }
};
const Case kCases[] = {
    {1, 1, 16},          {4, 2, 64},           {6, 1, 37},           {3, 3, 128},
    {8, 2, 100},         {4, 2, 64, 1.5f},     {6, 1, 37, 1, 0.25f}, {2, 2, 192, 0, 0, 128},
    {6, 2, 37, 1, 0, 5}, {3, 1, 20, 0, 0, 75}, {19, 1, 40},          {34, 2, 24, 1, 0, 16}};

struct Operands {
  Array qkv, cache, out, start = Array::ids(kStart), end = Array::ids(kEnd);
  int64_t T = int64_t(kStart.size());

  Operands(DType type, const Case& c)
      : qkv(Array::normal(type, int64_t(kStart.size()) * c.width(), 1)),
        cache(Array::normal(type, kRows * c.kv_width(), 2)),
        out(type, int64_t(kStart.size()) * c.A * c.value_dim()) {}
  AttentionDecode args(const Case& c, int64_t window = 0) {
    const ConstSpan all = cache;
    const auto* values = static_cast<const char*>(all.data) + c.G * c.D * dtype_size(all.dtype);
    return {.q = {qkv, c.width()},
            .k = {all, c.kv_width()},
            .v = {{values, all.count - c.G * c.D, all.dtype}, c.kv_width()},
            .out = {out, c.A * c.value_dim()},
            .start_T = start,
            .end_T = end,
            .T = T,
            .rows = kRows,
            .A = c.A,
            .G = c.G,
            .D = c.D,
            .window = window,
            .scale = c.scale_of(),
            .cap = c.cap,
            .Dv = c.Dv};
  }
  // The definition in float64: the attention of one query to all of its keys.
  std::vector<double> reference(const Case& c, int64_t window = 0) const {
    std::vector<double> want;
    for (size_t t = 0; t < kStart.size(); ++t) {
      const int64_t all = kEnd[t] - kStart[t], AD = c.A * c.D, GD = c.G * c.D;
      const int64_t N = c.kv_width(), keys = window > 0 ? std::min(window, all) : all;
      std::vector<double> k, v;
      for (int64_t j = kEnd[t] - keys; j < kEnd[t]; ++j) {
        const auto key = cache.values(j * N, GD), value = cache.values(j * N + GD, N - GD);
        k.insert(k.end(), key.begin(), key.end());
        v.insert(v.end(), value.begin(), value.end());
      }
      const AttentionReference r(
          {"", 1, 1, keys, c.A, c.G, c.D, false, 0, 0, {}, c.cap, c.scale, c.Dv},
          qkv.values(int64_t(t) * c.width(), AD), k, v,
          std::vector<double>(size_t(c.A * c.value_dim())));
      want.insert(want.end(), r.out.begin(), r.out.end());
    }
    return want;
  }
};

}  // namespace

TEST_CASE("attention decode: the definition in float64, for every type and set of instructions") {
  Closeness close("attention decode");
  for (DType type : kFloats)
    for (const Case& c : kCases)
      for (const int64_t window : kWindows) {
        Operands o(type, c);
        const auto want = o.reference(c, window);
        for_each_isa([&](const char* isa) {
          INFO(isa << ' ' << dtype_name(type) << " D " << c.D << " window " << window);
          o.out = Array(type, o.out.size());
          cpu::run(o.args(c, window));
          REQUIRE(close(o.out, want, {.dtype = type, .K = 600, .scale = 1, .sums = DType::f32}) ==
                  "");
          REQUIRE(o.out.margin_untouched());
        });
      }
}

TEST_CASE("attention decode has the bits of attention to the whole sequence") {
  for (DType type : kFloats)
    for (const Case& c : kCases)
      for (const int64_t window : kWindows) {
        Operands o(type, c);
        // The third query is the last of a sequence of 560 positions; the others are its first
        // ones.
        constexpr int64_t kQuery = 2, kPositions = 560;
        const int64_t AD = c.A * c.D, N = c.width(), N_kv = c.kv_width(),
                      N_out = c.A * c.value_dim();
        Array queries = Array::normal(type, kPositions * AD, 9), out(type, kPositions * N_out),
              lse(DType::f32, c.A * kPositions);
        for (int64_t i = 0; i < AD; ++i)
          queries.set((kPositions - 1) * AD + i, o.qkv[kQuery * N + i]);
        const AttentionDecode one = o.args(c, window);
        const auto rows = [&](const HeadView& x) {
          const int64_t before = kStart[kQuery] * N_kv;
          return HeadView{{static_cast<const char*>(x.data.data) + before * dtype_size(type),
                           x.data.count - before, type},
                          N_kv};
        };
        for_each_isa([&](const char* isa) {
          INFO(isa << ' ' << dtype_name(type) << " D " << c.D << " window " << window);
          cpu::run(one);
          cpu::run(AttentionForward{.shape = {.B = 1,
                                              .Sq = kPositions,
                                              .Skv = kPositions,
                                              .A = c.A,
                                              .G = c.G,
                                              .D = c.D,
                                              .Dv = c.Dv,
                                              .window = window,
                                              .scale = one.scale,
                                              .cap = one.cap},
                                    .q = {queries, AD},
                                    .k = rows(one.k),
                                    .v = rows(one.v),
                                    .out = {out, N_out},
                                    .lse = lse});
          for (int64_t i = 0; i < N_out; ++i)
            REQUIRE(o.out[kQuery * N_out + i] == out[(kPositions - 1) * N_out + i]);
        });
      }
}

TEST_CASE("attention decode: other queries and the number of threads change no bit") {
  const Case c = kCases[1];
  Operands o(DType::f32, c);
  cpu::run(o.args(c));
  const Array all = o.out;
  ThreadPool pool(3);
  {
    const ThreadPool::Scope scope(&pool);
    o.out = Array(DType::f32, o.out.size());
    cpu::run(o.args(c));
    REQUIRE(o.out == all);
  }
  AttentionDecode one = o.args(c);
  one.T = 1;
  o.out = Array(DType::f32, o.out.size());
  one.out = {o.out, c.A * c.D};
  cpu::run(one);
  for (int64_t i = 0; i < c.A * c.D; ++i) REQUIRE(o.out[i] == all[i]);
}

TEST_CASE("attention decode: keys of very different sizes, and a NaN, keep their meaning") {
  const Case c{1, 1, 16};
  Operands o(DType::f32, c);
  for (int64_t i = 0; i < o.cache.size(); ++i) o.cache.set(i, o.cache[i] * (i % 7 == 0 ? 60 : 1));
  Closeness close("attention decode of large scores");
  const auto want = o.reference(c);
  for_each_isa([&](const char* isa) {
    INFO(isa);
    cpu::run(o.args(c));
    // A probability carries the rounding error of a score, which is large here.
    REQUIRE(close(o.out, want, {.K = 600, .scale = 100}) == "");
  });
  o.cache.set(10 * 2 * c.G * c.D, std::numeric_limits<double>::quiet_NaN());
  for_each_isa([&](const char* isa) {
    INFO(isa);
    cpu::run(o.args(c));
    REQUIRE(!std::isnan(o.out[0]));             // query 0 does not see row 10
    REQUIRE(std::isnan(o.out[1 * c.A * c.D]));  // query 1 does
  });
}

TEST_CASE("attention decode: arguments that cannot be right are refused") {
  const Case c = kCases[1];
  Operands o(DType::f32, c);
  REQUIRE_NOTHROW(cpu::run(o.args(c)));
  AttentionDecode none = o.args(c);
  none.start_T = none.end_T;  // no rows
  REQUIRE_THROWS_AS(cpu::run(none), BugError);
  AttentionDecode beyond = o.args(c);
  beyond.rows = 599;
  REQUIRE_THROWS_AS(cpu::run(beyond), BugError);
  AttentionDecode heads = o.args(c);
  heads.A = 3;
  REQUIRE_THROWS_AS(cpu::run(heads), BugError);
}

}  // namespace kernels_attention_decode_test
