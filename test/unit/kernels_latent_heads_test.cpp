#include <catch2/catch.hpp>

#include <cmath>

#include "base/error.h"
#include "kernels/latent_heads.h"
#include "kernels/rope.h"
#include "test/support/kernels_testing.h"

namespace kernels_latent_heads_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

struct Sizes {
  int64_t T, A, N, R, V;
  int64_t D() const { return N + R; }
  int64_t width() const { return A * (2 * D() + V); }
};
const Sizes kSizesOfHeads[] = {
    {1, 1, 1, 2, 1}, {5, 3, 12, 8, 6}, {3, 2, 37, 18, 45}, {7, 4, 128, 64, 128}};

LatentHeadsForward forward_of(const Sizes& s, const Array& q, const Array& kv, const Array& shared,
                              Array& qkv) {
  return {.q_TN = q,
          .kv_TN = kv,
          .shared_TR = shared,
          .qkv_TN = qkv,
          .T = s.T,
          .A = s.A,
          .N = s.N,
          .R = s.R,
          .V = s.V};
}

}  // namespace

TEST_CASE("latent heads: every element has its place, and shared ones are in every key") {
  for (const DType type : kFloats)
    for (const Sizes& s : kSizesOfHeads) {
      const Array q = Array::normal(type, s.T * s.A * s.D(), 1),
                  kv = Array::normal(type, s.T * s.A * (s.N + s.V), 2),
                  shared = Array::normal(type, s.T * s.R, 3);
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, dtype_name(type), s.T, s.A, s.N, s.R, s.V);
        Array qkv(type, s.T * s.width());
        cpu::run(forward_of(s, q, kv, shared, qkv));
        REQUIRE(qkv.margin_untouched());
        for (int64_t t = 0; t < s.T; ++t)
          for (int64_t h = 0; h < s.A; ++h) {
            const int64_t row = t * s.width(), key = row + (s.A + h) * s.D(),
                          value = row + 2 * s.A * s.D() + h * s.V,
                          from = (t * s.A + h) * (s.N + s.V);
            for (int64_t i = 0; i < s.D(); ++i)
              REQUIRE(qkv[row + h * s.D() + i] == q[(t * s.A + h) * s.D() + i]);
            for (int64_t i = 0; i < s.N; ++i) REQUIRE(qkv[key + i] == kv[from + i]);
            for (int64_t i = 0; i < s.R; ++i) REQUIRE(qkv[key + s.N + i] == shared[t * s.R + i]);
            for (int64_t i = 0; i < s.V; ++i) REQUIRE(qkv[value + i] == kv[from + s.N + i]);
          }
      });
    }
}

TEST_CASE("latent heads: without queries the rows have the same keys and values") {
  for (const DType type : kFloats)
    for (const Sizes& s : kSizesOfHeads) {
      const Array q = Array::normal(type, s.T * s.A * s.D(), 1),
                  kv = Array::normal(type, s.T * s.A * (s.N + s.V), 2),
                  shared = Array::normal(type, s.T * s.R, 3);
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, dtype_name(type), s.T, s.A, s.N, s.R, s.V);
        const int64_t of_q = s.A * s.D(), width = s.width() - of_q;
        Array all(type, s.T * s.width()), keys_values(type, s.T * width);
        cpu::run(forward_of(s, q, kv, shared, all));
        LatentHeadsForward f = forward_of(s, q, kv, shared, keys_values);
        f.q_TN = {};
        cpu::run(f);
        REQUIRE(keys_values.margin_untouched());
        for (int64_t t = 0; t < s.T; ++t)
          for (int64_t i = 0; i < width; ++i)
            REQUIRE(keys_values[t * width + i] == all[t * s.width() + of_q + i]);
      });
    }
}

TEST_CASE("latent queries and values multiply by a head's rows of the weight") {
  const int64_t C = 75;
  for (const DType type : kFloats) {
    Closeness close(fmt::format("latent queries {}", dtype_name(type)));
    for (const Sizes& s : kSizesOfHeads) {
      const Array q = Array::normal(type, s.T * s.A * s.D(), 5),
                  x = Array::normal(type, s.T * s.A * C, 6),
                  weight = Array::normal(type, s.A * (s.N + s.V) * C, 7);
      std::vector<double> queries, values;
      for (int64_t row = 0; row < s.T * s.A; ++row) {
        const int64_t first = row % s.A * (s.N + s.V);
        for (int64_t c = 0; c < C; ++c) {
          double sum = 0;
          for (int64_t n = 0; n < s.N; ++n) sum += q[row * s.D() + n] * weight[(first + n) * C + c];
          queries.push_back(sum);
        }
        for (int64_t i = s.N; i < s.D(); ++i) queries.push_back(q[row * s.D() + i]);
        for (int64_t v = s.N; v < s.N + s.V; ++v) {
          double sum = 0;
          for (int64_t c = 0; c < C; ++c) sum += x[row * C + c] * weight[(first + v) * C + c];
          values.push_back(sum);
        }
      }
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, dtype_name(type), s.T, s.A, s.N, s.R, s.V);
        Array of_q(type, int64_t(queries.size())), of_v(type, int64_t(values.size()));
        LatentQueries a{.q_TN = q,
                        .weight_NC = weight,
                        .out_TN = of_q,
                        .T = s.T,
                        .A = s.A,
                        .N = s.N,
                        .R = s.R,
                        .V = s.V,
                        .C = C};
        cpu::run(a);
        cpu::run(LatentValues{.x_TN = x,
                              .weight_NC = weight,
                              .out_TN = of_v,
                              .T = s.T,
                              .A = s.A,
                              .N = s.N,
                              .V = s.V,
                              .C = C});
        const Rule rule{
            .dtype = type, .K = double(std::max(s.N, C)), .scale = 10, .sums = DType::f32};
        REQUIRE(close(of_q, queries, rule) == "");
        REQUIRE(close(of_v, values, rule) == "");
        REQUIRE(of_q.margin_untouched());
        REQUIRE(of_v.margin_untouched());
        a.C = C + 1;
        REQUIRE_THROWS_AS(cpu::run(a), BugError);
      });
    }
  }
}

TEST_CASE("latent heads: the backward is the transpose of the forward") {
  for (const DType type : kFloats) {
    Closeness close(fmt::format("latent heads backward {}", dtype_name(type)));
    for (const Sizes& s : kSizesOfHeads) {
      const Array dqkv = Array::normal(type, s.T * s.width(), 4);
      std::vector<double> want(size_t(s.T * s.R));
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, dtype_name(type), s.T, s.A, s.N, s.R, s.V);
        Array dq(type, s.T * s.A * s.D()), dkv(type, s.T * s.A * (s.N + s.V)),
            dshared(type, s.T * s.R);
        cpu::run(LatentHeadsBackward{.dqkv_TN = dqkv,
                                     .dq_TN = dq,
                                     .dkv_TN = dkv,
                                     .dshared_TR = dshared,
                                     .T = s.T,
                                     .A = s.A,
                                     .N = s.N,
                                     .R = s.R,
                                     .V = s.V});
        // With these gradients as inputs, the forward repeats all elements that are not shared.
        Array again(type, dqkv.size());
        cpu::run(forward_of(s, dq, dkv, dshared, again));
        std::fill(want.begin(), want.end(), 0);
        for (int64_t t = 0; t < s.T; ++t)
          for (int64_t i = 0; i < s.width(); ++i) {
            const int64_t at = t * s.width() + i, key = i - s.A * s.D();
            const bool shared = key >= 0 && key < s.A * s.D() && key % s.D() >= s.N;
            if (shared)
              want[size_t(t * s.R + key % s.D() - s.N)] += dqkv[at];
            else
              REQUIRE(again[at] == dqkv[at]);
          }
        REQUIRE(close(dshared, want, {.dtype = type, .K = double(s.A), .scale = 4}) == "");
        for (const Array* x : {&dq, &dkv, &dshared}) REQUIRE(x->margin_untouched());
      });
    }
  }
}

TEST_CASE("latent heads: sizes that contradict each other are refused") {
  const Sizes s{5, 3, 12, 8, 6};
  const Array q(DType::f32, s.T * s.A * s.D()), kv(DType::f32, s.T * s.A * (s.N + s.V)),
      shared(DType::f32, s.T * s.R);
  Array qkv(DType::f32, s.T * s.width());
  LatentHeadsForward f = forward_of(s, q, kv, shared, qkv);
  REQUIRE_NOTHROW(cpu::run(f));
  f.V = 7;
  REQUIRE_THROWS_AS(cpu::run(f), BugError);
}

TEST_CASE("interleaved rope rotates the last pairs of neighbours, and its backward rotates back") {
  const int64_t T = 5, heads = 3, positions = 11;
  const std::vector<int32_t> at = {3, 0, 10, 1, 3};
  for (const DType type : kFloats) {
    Closeness close(fmt::format("interleaved rope {}", dtype_name(type)));
    for (const auto& [D, R] :
         {std::pair<int64_t, int64_t>{2, 1}, {20, 4}, {19, 9}, {192, 32}, {64, 32}}) {
      const int64_t stride = heads * D + 9, first = D - 2 * R;
      std::vector<double> cos, sin;
      for (int64_t i = 0; i < positions * R; ++i) {
        const double angle = double(i / R) * std::pow(10000.0, -double(i % R) / double(R));
        cos.push_back(1.25 * std::cos(angle)), sin.push_back(1.25 * std::sin(angle));
      }
      const Array c(DType::f32, cos), s(DType::f32, sin), position = Array::ids(at);
      const Array before = Array::normal(type, T * stride, 1);
      for_each_isa([&, D = D, R = R](const char* isa) {
        CAPTURE(isa, dtype_name(type), D, R);
        for (const bool backward : {false, true}) {
          std::vector<double> want = before.values();
          for (int64_t t = 0; t < T; ++t)
            for (int64_t i = 0; i < heads * R; ++i) {
              const int64_t u = t * stride + i / R * D + first + 2 * (i % R), lane = i % R;
              const double cosine = c[at[size_t(t)] * R + lane],
                           sine = (backward ? -1 : 1) * s[at[size_t(t)] * R + lane];
              want[size_t(u)] = before[u] * cosine - before[u + 1] * sine;
              want[size_t(u + 1)] = before[u + 1] * cosine + before[u] * sine;
            }
          Array x = before;
          cpu::run(Rope{.x = x,
                        .cos_PR = c,
                        .sin_PR = s,
                        .position_T = position,
                        .T = T,
                        .heads = heads,
                        .D = D,
                        .R = R,
                        .token_stride = stride,
                        .backward = backward,
                        .first = first,
                        .interleaved = true});
          REQUIRE(close(x, want, {.dtype = type, .K = 2, .scale = 4}) == "");
          for (int64_t i = heads * D; i < stride; ++i) REQUIRE(x[i] == before[i]);
        }
      });
    }
  }
}

}  // namespace kernels_latent_heads_test
