#include <catch2/catch.hpp>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/rope.h"
#include "kernels/weighted_swiglu.h"
#include "test/support/kernels_testing.h"

namespace kernels_pointwise_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x, bool tanh) {
  return tanh ? 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))
              : 0.5 * x * std::erfc(-x / std::sqrt(2));
}
double gelu_tanh(double x) { return gelu(x, true); }

struct NamedGate {
  GateFunction gate;
  const char* name;
  double (*function)(double);
};
const NamedGate kGates[] = {{GateFunction::silu, "swiglu", silu},
                            {GateFunction::gelu_tanh, "geglu", gelu_tanh}};

std::vector<std::pair<DType, NamedGate>> each_gate() {
  std::vector<std::pair<DType, NamedGate>> all;
  for (const NamedGate& gate : kGates)
    for (DType dtype : kFloats) all.emplace_back(dtype, gate);
  return all;
}

template <class F>
double slope(const F& f, double x) {
  return (f(x + 1e-4) - f(x - 1e-4)) / 2e-4;
}

std::string name(const char* what, DType dtype) {
  return std::string(what) + " " + std::string(dtype_name(dtype));
}

const std::vector<int64_t> kSizes = {1, 7, 16, 33, 1001, 70001};

// Normal numbers, and the ends of the range where an activation is flat.
Array activation_input(DType dtype, int64_t n) {
  Array x = Array::normal(dtype, n, 1, 3);
  const double ends[] = {-100, -20, -9.5, 0, 9.5, 20, 100};
  for (int64_t i = 0; i < n / 8 && i < 7; ++i) x.set(8 * i + i, ends[i]);
  return x;
}

}  // namespace

TEST_CASE("swiglu, geglu and their backward equal their definition and finite differences") {
  for (const auto& [dtype, named] : each_gate()) {
    const auto& [gate, word, function] = named;
    Closeness close(name(word, dtype)), close_back(name("  its backward", dtype));
    for (int64_t F : {1, 7, 33, 1001}) {
      const int64_t T = F == 1001 ? 40 : 3;
      const Array gate_up = activation_input(dtype, T * 2 * F), dy = Array::normal(dtype, T * F, 2);
      std::vector<double> want_y, want_d(T * 2 * F);
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < F; ++i) {
          const double g = gate_up[t * 2 * F + i], u = gate_up[t * 2 * F + F + i],
                       d = dy[t * F + i];
          want_y.push_back(function(g) * u);
          want_d[t * 2 * F + i] = d * u * slope(function, g);
          want_d[t * 2 * F + F + i] = d * function(g);
        }
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, F);
        Array y(dtype, T * F), d(dtype, T * 2 * F), again(dtype, T * F);
        cpu::run(SwigluForward{.gate_up_T2F = gate_up, .y_TF = y, .T = T, .F = F, .gate = gate});
        cpu::run(SwigluBackward{.gate_up_T2F = gate_up,
                                .dy_TF = dy,
                                .dgate_up_T2F = d,
                                .y_TF = again,
                                .T = T,
                                .F = F,
                                .gate = gate});
        // K: a handful of roundings in a row; scale: the product of the factors that they are
        // multiplied by, each a few units (deviation 3).
        REQUIRE(close(y, want_y, {.dtype = dtype, .K = 8, .scale = 8, .sums = DType::f32}) == "");
        REQUIRE(close_back(d, want_d, {.dtype = dtype, .K = 8, .scale = 32, .sums = DType::f32}) ==
                "");
        REQUIRE(again == y);
        Array in_place = gate_up, over_dy = dy;
        cpu::run(SwigluBackward{.gate_up_T2F = in_place,
                                .dy_TF = over_dy,
                                .dgate_up_T2F = in_place,
                                .y_TF = over_dy,
                                .T = T,
                                .F = F,
                                .gate = gate});
        REQUIRE((in_place == d && over_dy == y));
      });
    }
  }
}

TEST_CASE("weighted swiglu, geglu and their backward equal their definition") {
  for (const auto& [dtype, named] : each_gate()) {
    const auto& [gate, word, function] = named;
    Closeness close(name(word, dtype) + " weighted"), close_weight(name("  its weights", dtype));
    for (int64_t F : {1, 7, 33, 1001}) {
      const int64_t R = F == 1001 ? 40 : 3;
      const Array gate_up = activation_input(dtype, R * 2 * F), dy = Array::normal(dtype, R * F, 2),
                  weight = Array::normal(DType::f32, R, 3);
      std::vector<double> want_y, want_d(R * 2 * F), want_w(R);
      for (int64_t r = 0; r < R; ++r)
        for (int64_t i = 0; i < F; ++i) {
          const double g = gate_up[r * 2 * F + i], u = gate_up[r * 2 * F + F + i],
                       d = dy[r * F + i], w = weight[r];
          want_y.push_back(w * function(g) * u);
          want_d[r * 2 * F + i] = d * w * u * slope(function, g);
          want_d[r * 2 * F + F + i] = d * w * function(g);
          want_w[r] += d * function(g) * u;
        }
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, F);
        Array y(dtype, R * F), d(dtype, R * 2 * F), again(dtype, R * F), dweight(DType::f32, R);
        cpu::run(WeightedSwigluForward{
            .gate_up_R2F = gate_up, .weight_R = weight, .y_RF = y, .R = R, .F = F, .gate = gate});
        cpu::run(WeightedSwigluBackward{.gate_up_R2F = gate_up,
                                        .weight_R = weight,
                                        .dy_RF = dy,
                                        .dgate_up_R2F = d,
                                        .dweight_R = dweight,
                                        .y_RF = again,
                                        .R = R,
                                        .F = F,
                                        .gate = gate});
        const Rule rule{.dtype = dtype, .K = 12, .scale = 64, .sums = DType::f32};
        REQUIRE(close(y, want_y, rule) == "");
        REQUIRE(close(d, want_d, rule) == "");
        // A term of a row's sum is at most some 3 * 9 * 100.
        REQUIRE(close_weight(
                    dweight, want_w,
                    {.dtype = DType::f32, .K = double(F), .scale = 2700, .sums = DType::f32}) ==
                "");
        REQUIRE(again == y);
        Array in_place = gate_up, over_dy = dy;
        cpu::run(WeightedSwigluBackward{.gate_up_R2F = in_place,
                                        .weight_R = weight,
                                        .dy_RF = over_dy,
                                        .dgate_up_R2F = in_place,
                                        .dweight_R = dweight,
                                        .y_RF = over_dy,
                                        .R = R,
                                        .F = F,
                                        .gate = gate});
        REQUIRE((in_place == d && over_dy == y));
      });
    }
  }
}

TEST_CASE("gelu and its backward equal their definition and finite differences") {
  for (bool tanh : {true, false})
    for (DType dtype : kFloats) {
      Closeness close(name(tanh ? "gelu tanh" : "gelu erf", dtype)),
          close_back(name("  its backward", dtype));
      for (int64_t n : kSizes) {
        const Array x = activation_input(dtype, n), dy = Array::normal(dtype, n, 2);
        std::vector<double> want_y, want_d;
        for (int64_t i = 0; i < n; ++i) {
          want_y.push_back(gelu(x[i], tanh));
          want_d.push_back(dy[i] * slope([&](double v) { return gelu(v, tanh); }, x[i]));
        }
        for_each_isa([&](const char* isa) {
          CAPTURE(isa, n, tanh);
          Array y(dtype, n), d(dtype, n), again(dtype, n);
          cpu::run(GeluForward{.x = x, .y = y, .count = n, .tanh = tanh});
          cpu::run(GeluBackward{.x = x, .dy = dy, .dx = d, .y = again, .count = n, .tanh = tanh});
          // K: a handful of roundings in a row; scale: x and dy are a few units.
          REQUIRE(close(y, want_y, {.dtype = dtype, .K = 8, .scale = 4, .sums = DType::f32}) == "");
          REQUIRE(close_back(d, want_d, {.dtype = dtype, .K = 8, .scale = 8, .sums = DType::f32}) ==
                  "");
          REQUIRE(again == y);
          Array over_dy = dy;
          cpu::run(GeluBackward{.x = x, .dy = over_dy, .dx = over_dy, .count = n, .tanh = tanh});
          REQUIRE(over_dy == d);
          Array over_x = x, y_over_dy = dy;
          cpu::run(GeluBackward{.x = over_x,
                                .dy = y_over_dy,
                                .dx = over_x,
                                .y = y_over_dy,
                                .count = n,
                                .tanh = tanh});
          REQUIRE((over_x == d && y_over_dy == y));
          REQUIRE((y.margin_untouched() && d.margin_untouched()));
        });
      }
    }
}

TEST_CASE("a soft cap equals its definition, in place, and refuses a cap of 0") {
  for (DType dtype : kFloats) {
    for (int64_t n : kSizes)
      for (float cap : {0.5f, 30.0f}) {
        const Array x = activation_input(dtype, n);
        std::vector<double> want;
        for (int64_t i = 0; i < n; ++i) want.push_back(cap * std::tanh(x[i] / cap));
        for_each_isa([&](const char* isa) {
          CAPTURE(isa, n, cap);
          Array y = x;
          cpu::run(SoftCap{.y = y, .cap = cap});
          // A handful of roundings, each relative to the result: near 0 the cap is the identity.
          for (int64_t i = 0; i < n; ++i)
            REQUIRE(std::abs(y[i] - want[size_t(i)]) <=
                    (eps(dtype) + 4 * eps(DType::f32)) * std::abs(want[size_t(i)]));
          REQUIRE(y.margin_untouched());
        });
      }
  }
  Array x(DType::f32, 3);
  REQUIRE_THROWS_WITH(cpu::run(SoftCap{.y = x, .cap = 0}), Catch::Contains("a cap of 0"));
}

TEST_CASE("rope rotates each pair, its backward rotates back, and other columns stay") {
  const int64_t T = 5, heads = 3, positions = 11;
  for (DType dtype : kFloats) {
    Closeness close(name("rope", dtype)), close_back(name("rope backward", dtype));
    // Some heads are rotated in part: only the first 2 R elements change.
    for (const auto& [D, R] : {std::pair<int64_t, int64_t>{2, 1},
                               {6, 3},
                               {34, 17},
                               {128, 64},
                               {5, 1},
                               {96, 36},
                               {128, 16}}) {
      const int64_t stride = heads * D + 9;
      std::vector<double> cos, sin;
      for (int64_t p = 0; p < positions; ++p)
        for (int64_t r = 0; r < R; ++r) {
          const double angle = double(p) * std::pow(10000.0, -double(r) / double(R));
          cos.push_back(std::cos(angle));
          sin.push_back(std::sin(angle));
        }
      const Array c(DType::f32, cos), s(DType::f32, sin), position = Array::ids({3, 0, 10, 1, 3});
      const int32_t at[] = {3, 0, 10, 1, 3};
      const Array before = Array::normal(dtype, T * stride, 1),
                  dy = Array::normal(dtype, T * stride, 2);
      std::vector<double> want = before.values(), want_dx = dy.values();
      for (int64_t t = 0; t < T; ++t)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t r = 0; r < R; ++r) {
            const int64_t i = t * stride + h * D + r, j = i + R;
            const double cr = c[at[t] * R + r], sr = s[at[t] * R + r];
            const auto loss = [&](const std::vector<double>& v) {
              return (v[0] * cr - v[1] * sr) * dy[i] + (v[1] * cr + v[0] * sr) * dy[j];
            };
            want[i] = before[i] * cr - before[j] * sr;
            want[j] = before[j] * cr + before[i] * sr;
            const auto d = finite_difference({before[i], before[j]}, loss);
            want_dx[i] = d[0], want_dx[j] = d[1];
          }
      for_each_isa([&, D = D, R = R](const char* isa) {
        CAPTURE(isa, D, R);
        Array x = before, dx = dy;
        Rope a{.x = x,
               .cos_PR = c,
               .sin_PR = s,
               .position_T = position,
               .T = T,
               .heads = heads,
               .D = D,
               .R = R,
               .token_stride = stride};
        cpu::run(a);
        a.x = dx, a.backward = true;
        cpu::run(a);
        const Rule rule{.dtype = dtype,
                        .K = 2,
                        .scale = 3,
                        .sums = DType::f32};  // two products of up to about 3
        REQUIRE(close(x, want, rule) == "");
        REQUIRE(close_back(dx, want_dx, rule) == "");
        for (int64_t t = 0; t < T; ++t)
          for (int64_t i = 0; i < stride; ++i)
            if (i >= heads * D || i % D >= 2 * R) {
              REQUIRE(x[t * stride + i] == before[t * stride + i]);
              REQUIRE(dx[t * stride + i] == dy[t * stride + i]);
            }
      });
    }
  }
}

TEST_CASE("rope refuses a position beyond its tables") {
  Array x(DType::f32, 8), c(DType::f32, 4), s(DType::f32, 4);
  const Array position = Array::ids({1, 2});
  const Rope a{.x = x,
               .cos_PR = c,
               .sin_PR = s,
               .position_T = position,
               .T = 2,
               .heads = 1,
               .D = 4,
               .R = 2,
               .token_stride = 4};
  REQUIRE_THROWS_WITH(cpu::run(a), Catch::Contains("position[1] = 2 is not in [0, 2)"));
}

TEST_CASE("add, cast, fill and scale round once") {
  for (int64_t n : kSizes)
    for_each_isa([&](const char* isa) {
      CAPTURE(isa, n);
      for (DType ta : kFloats)
        for (DType tb : kFloats)
          for (DType ty : kFloats) {
            if (!can_meet(ta, tb, ty)) continue;
            const Array a = Array::normal(ta, n, 1), b = Array::normal(tb, n, 2);
            Array y(ty, n), want(ty, n);
            cpu::run(Add{.a = a, .b = b, .y = y});
            for (int64_t i = 0; i < n; ++i) want.set(i, double(float(a[i]) + float(b[i])));
            REQUIRE(y == want);
          }
      for (DType from : kFloats)
        for (DType to : kFloats) {
          const Array x = Array::normal(from, n, 3);
          Array y(to, n), want(to, x.values());
          cpu::run(Cast{.x = x, .y = y});
          REQUIRE(y == want);
          cpu::run(Scale{.y = y, .factor = 0.3f});
          for (int64_t i = 0; i < n; ++i) want.set(i, double(float(want[i]) * 0.3f));
          REQUIRE(y == want);
          cpu::run(Fill{.y = y, .value = -2.5f});
          REQUIRE(y == Array(to, std::vector<double>(n, -2.5)));
          cpu::run(Fill{.y = y});
          REQUIRE(y == Array(to, n));
        }
      Array f64 = Array(DType::f64, std::vector<double>(n, 3));
      cpu::run(Fill{.y = f64});
      REQUIRE(f64 == Array(DType::f64, n));
    });
}

TEST_CASE("normal numbers are those of their stream, for any number of threads") {
  const int64_t n = 100'003;
  const Array want = Array::normal(DType::f32, n, 17, 0.02f);
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    const ThreadPool::Scope scope(&pool);
    Array y(DType::f32, n);
    cpu::run(FillNormal{.y = y, .key = 17, .std = 0.02f});
    REQUIRE(y == want);
  }
}

TEST_CASE("rounding to 16 bits is base/dtype.h's for every kind of number") {
  std::vector<float> numbers;
  for (uint64_t i = 0; i < 20000; ++i)
    numbers.push_back(std::bit_cast<float>(uint32_t(uniform_below(7, i, 1ull << 32))));
  // Around fp16's range: its denormals, ties, and numbers that become infinity.
  for (uint64_t i = 0; i < 20000; ++i)
    numbers.push_back(
        std::bit_cast<float>(uint32_t(0x32000000 + uniform_below(8, i, 0x16000000)) & ~0xfffu));
  for (float special : {INFINITY, -INFINITY, NAN, -NAN, 0.0f, -0.0f, 1e-45f, 3.4028235e38f,
                        65504.0f, 65519.99f, 65520.0f, -65520.0f, 0x1p-24f, 0x1p-25f, 0x1.002p-25f})
    numbers.push_back(special);
  numbers.push_back(
      std::bit_cast<float>(0x7f800001u));  // a NaN whose upper half is that of infinity
  const int64_t n = int64_t(numbers.size());
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    Array y(DType::bf16, n);
    cpu::run(Cast{.x = {numbers.data(), n, DType::f32}, .y = y});
    for (int64_t i = 0; i < n; ++i) REQUIRE(y.span().as<bf16>()[i].bits == bf16(numbers[i]).bits);
    Array half(DType::f16, n);
    cpu::run(Cast{.x = {numbers.data(), n, DType::f32}, .y = half});
    for (int64_t i = 0; i < n; ++i) REQUIRE(half.span().as<f16>()[i].bits == f16(numbers[i]).bits);
    // Every fp16 number, alone at the end of a row and among others, widens to itself.
    std::vector<f16> all(0x10000 + 3);
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::bit_cast<f16>(uint16_t(i));
    Array wide(DType::f32, int64_t(all.size()));
    cpu::run(Cast{.x = {all.data(), wide.size(), DType::f16}, .y = wide});
    for (size_t i = 0; i < all.size(); ++i)
      REQUIRE(std::bit_cast<uint32_t>(wide.span().as<float>()[i]) ==
              std::bit_cast<uint32_t>(float(all[i])));
  });
}

TEST_CASE("dropout's choice is a function of the key and the global element alone") {
  const int64_t n = 5003;
  const float p = 0.3f;
  const uint64_t key = rng_key(1, "layer.0");
  for (DType dtype : kFloats) {
    const Array x = Array::normal(dtype, n, 1);
    for_each_isa([&](const char* isa) {
      CAPTURE(isa);
      Array whole(dtype, n);
      cpu::run(Dropout{.x = x, .y = whole, .key = key, .first_index = 0, .p = p});
      int64_t kept = 0;
      for (int64_t i = 0; i < n; ++i) {  // the stream, as base/rng.h defines it
        const bool keep =
            Philox::block(key, uint64_t(i) / 4)[i % 4] >= uint32_t(double(p) * 4294967296.0);
        kept += keep;
        const Array want = Array::one(dtype, keep ? x[i] * double(1.0f / (1.0f - p)) : 0.0);
        REQUIRE(std::abs(whole[i] - want[0]) <=
                eps(dtype) * std::abs(want[0]));  // K = 0: one rounding
      }
      REQUIRE(std::abs(double(kept) - n * 0.7) <
              5 * std::sqrt(n * 0.3 * 0.7));    // five standard deviations
      for (int64_t first : {1, 3, 64, 1002}) {  // a rank's share of the same elements
        CAPTURE(first);
        Array part(dtype, n - first);
        cpu::run(Dropout{.x = {static_cast<const char*>(x.span().data) + first * dtype_size(dtype),
                               n - first, dtype},
                         .y = part,
                         .key = key,
                         .first_index = first,
                         .p = p});
        REQUIRE(part.values() == whole.values(first));
        REQUIRE(part.margin_untouched());
      }
      Array in_place = x;
      cpu::run(Dropout{.x = in_place, .y = in_place, .key = key, .p = p});
      REQUIRE(in_place == whole);
    });
  }
  Array x(DType::f32, 3);
  REQUIRE_THROWS_WITH(cpu::run(Dropout{.x = x, .y = x, .key = 1, .p = 1}),
                      Catch::Contains("p = 1 is not in [0, 1)"));
}

}  // namespace kernels_pointwise_test
