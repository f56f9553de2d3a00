// Element-wise kernels: every element is a function of a few others, so few sizes suffice.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/copy_blocks.h"
#include "kernels/elementwise.h"
#include "kernels/muon.h"
#include "kernels/rope.h"
#include "kernels/weighted_swiglu.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

std::vector<int64_t> sizes() { return {1, 3, 8, 31, 1003, size_of_test(3000, 300001)}; }

}  // namespace

TEST_CASE("add, cast, scale and fill have the CPU's bits") {
  for (int64_t n : sizes())
    for (DType a : kFloats)
      for (DType b : kFloats)
        for (DType y : kFloats)
          for_each_way([&](int64_t offset) {
            if (!can_meet(a, b, y)) return;
            CAPTURE(n, a, b, y);
            Mirror l(Array::normal(a, n, 1), offset), r(Array::normal(b, n, 2), 2 * offset);
            Mirror sum(Array(y, n), offset), copy(Array(y, n)),
                filled(Array::normal(y, n, 3), offset);
            cpu::run(Add{l.host(), r.host(), sum.host()});
            cuda::run(Add{l.device(), r.device(), sum.device()}, device_stream());
            REQUIRE(sum.same());
            cpu::run(Cast{l.host(), copy.host()});
            cuda::run(Cast{l.device(), copy.device()}, device_stream());
            REQUIRE(copy.same());
            cpu::run(Scale{copy.host(), 0.3f});
            cuda::run(Scale{copy.device(), 0.3f}, device_stream());
            REQUIRE(copy.same());
            for (float value : {1.7f, 0.0f}) {
              cpu::run(Fill{filled.host(), value});
              cuda::run(Fill{filled.device(), value}, device_stream());
              REQUIRE(filled.same());
            }
          });
}

TEST_CASE("soft caps equal the CPU's") {
  Closeness close("soft cap");
  for (int64_t n : sizes())
    for (DType type : kFloats)
      for_each_way([&](int64_t offset) {
        CAPTURE(n, type);
        Mirror y(Array::normal(type, n, 1, 4), offset);
        cpu::run(SoftCap{y.host(), 3.0f});
        cuda::run(SoftCap{y.device(), 3.0f}, device_stream());
        // Two forms of tanh, each with a few roundings of a number of at most 3.
        REQUIRE(y.compare(close, {.dtype = type, .K = 8, .scale = 3, .sums = DType::f32}) == "");
      });
}

TEST_CASE("a row that is added to all rows has the CPU's bits") {
  for (int64_t N : {1, 7, 16, 24, 1000})
    for (DType row : kFloats)
      for (DType type : kFloats)
        for_each_way([&](int64_t offset) {
          if (!can_meet(row, type, type)) return;
          CAPTURE(N, row, type);
          constexpr int64_t M = 5;
          Mirror r(Array::normal(row, N, 1), offset), y(Array::normal(type, M * N, 2), offset);
          cpu::run(AddRow{.row_N = r.host(), .y_MN = y.host(), .M = M, .N = N});
          cuda::run(AddRow{.row_N = r.device(), .y_MN = y.device(), .M = M, .N = N},
                    device_stream());
          REQUIRE(y.same());
        });
}

TEST_CASE("casts round NaN, infinities and ties as the CPU does") {
  std::vector<double> values = {0.0, -0.0, INFINITY, -INFINITY, 1 + 0x1p-8, 1 + 0x3p-8, 0x1p-140,
                                3e38,
                                // fp16: ties, its largest, infinity from here on, denormals
                                1 + 0x1p-11, 1 + 0x3p-11, 65519.99, 65520, 0x1p-24, 0x1p-25};
  for (DType type : {DType::bf16, DType::f16}) {
    Mirror x(Array(DType::f32, values)), y(Array(type, int64_t(values.size())));
    cpu::run(Cast{x.host(), y.host()});
    cuda::run(Cast{x.device(), y.device()}, device_stream());
    REQUIRE(y.same());
    Mirror nan(Array::one(DType::f32, NAN)), got(Array(type, 1));
    cuda::run(Cast{nan.device(), got.device()}, device_stream());
    REQUIRE(std::isnan(got.result()[0]));
  }
}

TEST_CASE("dropout drops the CPU's elements") {
  for (int64_t n : sizes())
    for (DType dtype : kFloats)
      for (int64_t first : {int64_t(0), int64_t(5), int64_t(8), (int64_t(1) << 34) + 3})
        for_each_way([&](int64_t offset) {
          CAPTURE(n, dtype, first);
          Mirror x(Array::normal(dtype, n, 1), offset), y(Array(dtype, n), offset);
          const Dropout a{.x = x.host(),
                          .y = y.host(),
                          .key = 0x123456789abcdefull,
                          .first_index = first,
                          .p = 0.3f};
          cpu::run(a);
          cuda::run(
              Dropout{
                  .x = x.device(), .y = y.device(), .key = a.key, .first_index = first, .p = a.p},
              device_stream());
          REQUIRE(y.same());
        });
}

TEST_CASE("normal numbers are the CPU's") {
  Closeness close("fill_normal");
  for (int64_t n : sizes())
    for (int64_t first : {0, 1, 6})
      for_each_way([&](int64_t offset) {
        Mirror y(Array(DType::f32, n), offset);
        const FillNormal a{.y = y.host(), .key = 77, .first_index = first, .std = 0.02f};
        cpu::run(a);
        cuda::run(FillNormal{y.device(), a.key, first, a.std}, device_stream());
        REQUIRE(y.compare(close, {.K = 0}) == "");
      });
}

namespace {

constexpr GateFunction kGates[] = {GateFunction::silu, GateFunction::gelu_tanh};

double largest(const Array& x) {
  double most = 0;
  for (const double v : x.values()) most = std::max(most, std::abs(v));
  return most;
}

// With s = sigmoid(gate), the gate's gradient is dy up (s + s (1 - s) gate). Its two terms cancel
// near gate = -1.28, where each is at most 0.23 |dy up|; elsewhere errors are relative to the
// result. A term has four roundings (exp, reciprocal, two products), on either side of the
// comparison. With gelu's gate, in its tanh form, two terms of at most 0.23 cancel near gate =
// -0.75.
Rule swiglu_rule(DType dtype, const Array& gate_up, const Array& dy) {
  return {.dtype = dtype,
          .K = 2 * 4,
          .scale = 0.23 * largest(gate_up) * largest(dy),
          .sums = DType::f32};
}

}  // namespace

TEST_CASE("swiglu and geglu: forward and backward equal the CPU's") {
  for (DType dtype : kFloats)
    for (const GateFunction gate : kGates) {
      Closeness close("swiglu " + std::string(dtype_name(dtype)));
      for (int64_t F : {1, 7, 64, 1000, 4100})
        for_each_way([&](int64_t offset) {
          const int64_t T = 3;
          CAPTURE(F, int(gate));
          Mirror x(Array::normal(dtype, 2 * T * F, 1, 3), offset),
              dy(Array::normal(dtype, T * F, 2), offset);
          Mirror y(Array(dtype, T * F), offset), again(Array(dtype, T * F)),
              dx(Array(dtype, 2 * T * F), offset);
          const Rule rule = swiglu_rule(dtype, x.host(), dy.host());
          cpu::run(SwigluForward{x.host(), y.host(), T, F, {}, {}, gate});
          cuda::run(SwigluForward{x.device(), y.device(), T, F, {}, {}, gate}, device_stream());
          REQUIRE(y.compare(close, rule) == "");
          cpu::run(
              SwigluBackward{x.host(), dy.host(), dx.host(), again.host(), T, F, {}, {}, {}, gate});
          cuda::run(
              SwigluBackward{
                  x.device(), dy.device(), dx.device(), again.device(), T, F, {}, {}, {}, gate},
              device_stream());
          REQUIRE(dx.compare(close, rule) == "");
          REQUIRE(again.compare(close, rule) == "");
          cuda::run(
              SwigluBackward{
                  x.device(), dy.device(), x.device(), dy.device(), T, F, {}, {}, {}, gate},
              device_stream());  // in place
          const Array want_dx = dx.host(), want_y = again.host();
          REQUIRE(close(x.result(), want_dx.values(), rule) == "");
          REQUIRE(close(dy.result(), want_y.values(), rule) == "");
        });
    }
}

TEST_CASE("weighted swiglu and geglu: forward and backward equal the CPU's") {
  for (DType dtype : kFloats)
    for (const GateFunction gate : kGates) {
      Closeness close("weighted swiglu " + std::string(dtype_name(dtype)));
      for (int64_t F : {1, 7, 64, 1000, 4100})
        for_each_way([&](int64_t offset) {
          const int64_t R = 3;
          CAPTURE(F, int(gate));
          Mirror x(Array::normal(dtype, 2 * R * F, 1, 3), offset),
              w(Array::normal(DType::f32, R, 3)), dy(Array::normal(dtype, R * F, 2), offset);
          Mirror y(Array(dtype, R * F), offset), again(Array(dtype, R * F)),
              dx(Array(dtype, 2 * R * F), offset), dw(Array(DType::f32, R));
          Rule rule = swiglu_rule(dtype, x.host(), dy.host());
          rule.scale *= std::max(1.0, largest(w.host()));
          cpu::run(WeightedSwigluForward{x.host(), w.host(), y.host(), R, F, gate});
          cuda::run(WeightedSwigluForward{x.device(), w.device(), y.device(), R, F, gate},
                    device_stream());
          REQUIRE(y.compare(close, rule) == "");
          cpu::run(WeightedSwigluBackward{x.host(), w.host(), dy.host(), dx.host(), dw.host(),
                                          again.host(), R, F, gate});
          cuda::run(WeightedSwigluBackward{x.device(), w.device(), dy.device(), dx.device(),
                                           dw.device(), again.device(), R, F, gate},
                    device_stream());
          REQUIRE(dx.compare(close, rule) == "");
          REQUIRE(again.compare(close, rule) == "");
          // Two orders of a sum of terms of a few units, with approximate gates for 16 bits.
          const double size = largest(x.host()) * largest(x.host()) * largest(dy.host());
          REQUIRE(dw.compare(close,
                             {.dtype = dtype, .K = double(F), .scale = size, .sums = DType::f32}) ==
                  "");
          cuda::run(WeightedSwigluBackward{x.device(), w.device(), dy.device(), x.device(),
                                           dw.device(), dy.device(), R, F, gate},
                    device_stream());  // in place
          const Array want_dx = dx.host(), want_y = again.host();
          REQUIRE(close(x.result(), want_dx.values(), rule) == "");
          REQUIRE(close(dy.result(), want_y.values(), rule) == "");
        });
    }
}

TEST_CASE("gelu: both forms, forward and backward, equal the CPU's; large arguments stay finite") {
  for (DType dtype : kFloats)
    for (bool tanh : {true, false}) {
      Closeness close(std::string("gelu ") + (tanh ? "tanh " : "erf ") +
                      std::string(dtype_name(dtype)));
      const Rule rule{.dtype = dtype, .K = 4, .scale = 4, .sums = DType::f32};
      for (int64_t n : sizes())
        for_each_way([&](int64_t offset) {
          Array values = Array::normal(dtype, n, 1, 3);
          if (n > 30)
            values.set(3, 200), values.set(4, -200), values.set(5, 12), values.set(6, -12);
          Mirror x(values, offset), dy(Array::normal(dtype, n, 2), offset),
              y(Array(dtype, n), offset);
          Mirror dx(Array(dtype, n), offset), again(Array(dtype, n), offset);
          cpu::run(GeluForward{x.host(), y.host(), n, tanh});
          cuda::run(GeluForward{x.device(), y.device(), n, tanh}, device_stream());
          REQUIRE(y.compare(close, rule) == "");
          cpu::run(GeluBackward{x.host(), dy.host(), dx.host(), again.host(), n, tanh});
          cuda::run(GeluBackward{x.device(), dy.device(), dx.device(), again.device(), n, tanh},
                    device_stream());
          REQUIRE(dx.compare(close, rule) == "");
          REQUIRE(again.compare(close, rule) == "");
        });
    }
}

TEST_CASE("adamw equals the CPU's, and a scale that is not finite leaves everything as it is") {
  Closeness close("adamw");
  for (int64_t n : sizes())
    for (auto [copy, type] :
         {std::pair{false, DType::bf16}, {true, DType::bf16}, {true, DType::f16}})
      for (double scale : {0.5, double(NAN)})
        for_each_way([&, copy = copy, type = type](int64_t offset) {
          Array v_start = Array::normal(DType::f32, n, 4, 0.01f);
          for (int64_t i = 0; i < n; ++i) v_start.set(i, std::abs(v_start[i]));
          Mirror w(Array::normal(DType::f32, n, 1), offset),
              m(Array::normal(DType::f32, n, 3, 0.1f), offset);
          Mirror v(v_start, offset), g(Array::normal(DType::f32, n, 2), offset);
          Mirror param(Array(type, n), offset), s(Array::one(DType::f32, scale));
          const auto args = [&](auto&& of) {
            return AdamW{.master = of(w),
                         .m = of(m),
                         .v = of(v),
                         .grad = of(g),
                         .param = copy ? Span(of(param)) : Span{},
                         .grad_scale = of(s),
                         .lr = 0.01f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .decoupled_decay = !copy,
                         .step = 3};
          };
          cpu::run(args([](Mirror& x) { return x.host().span(); }));
          cuda::run(args([](Mirror& x) { return x.device(); }), device_stream());
          // v is a sum of two terms of one sign; the step divides by its root.
          for (Mirror* x : {&w, &m, &v}) REQUIRE(x->compare(close, {.K = 4, .scale = 1}) == "");
          REQUIRE(param.compare(close, {.dtype = type, .K = 1, .scale = 1, .sums = DType::f32}) ==
                  "");
        });
}

TEST_CASE("Muon's kernels equal the CPU's, with a finite scale and without") {
  Closeness close("muon");
  for (int64_t n : sizes())
    for (DType type : {DType::bf16, DType::f16})
      for (double scale : {0.5, double(NAN)})
        for_each_way([&, type = type](int64_t offset) {
          Mirror w(Array::normal(DType::f32, n, 1), offset),
              m(Array::normal(DType::f32, n, 3), offset),
              g(Array::normal(DType::f32, n, 2), offset);
          Mirror param(Array(type, n), offset), s(Array::one(DType::f32, scale)),
              squares(Array::one(DType::f64, 9));
          const auto all = [&](auto&& of, auto&& run) {
            run(MuonDirection{.momentum = of(m),
                              .grad = of(g),
                              .grad_scale = of(s),
                              .beta = 0.9f,
                              .nesterov = type == DType::bf16});
            run(MuonNormalize{.x = of(g), .sum_squares = of(squares), .eps = 1e-7f});
            run(MuonUpdate{.master = of(w),
                           .direction = of(g),
                           .param = of(param),
                           .grad_scale = of(s),
                           .lr = 0.01f,
                           .weight_decay = 0.1f});
          };
          all([](Mirror& x) { return x.host().span(); }, [](const auto& a) { cpu::run(a); });
          all([](Mirror& x) { return x.device(); },
              [](const auto& a) { cuda::run(a, device_stream()); });
          for (Mirror* x : {&w, &m, &g}) REQUIRE(x->compare(close, {.K = 6, .scale = 1}) == "");
          REQUIRE(param.compare(close, {.dtype = type, .K = 1, .scale = 1, .sums = DType::f32}) ==
                  "");
        });
}

TEST_CASE("adamw without master weights rounds as the CPU does, bit for bit") {
  for (int64_t n : sizes())
    for (const AdamWRounding& rounding :
         {AdamWRounding{}, AdamWRounding{.random = true, .key = 9, .first = (int64_t(1) << 34) + 3},
          AdamWRounding{.random = true, .key = 9, .first = 5, .at = 2, .columns = 6, .stride = 21}})
      for_each_way([&](int64_t offset) {
        CAPTURE(n, rounding.columns);
        Mirror m(Array(DType::f32, n), offset), v(Array(DType::f32, n), offset);
        Mirror g(Array::normal(DType::f32, n, 2), offset),
            w(Array::normal(DType::bf16, n, 1), offset);
        // Betas and eps of 0: the update is exactly lr up or down, whatever a compiler fuses.
        const auto args = [&](auto&& of) {
          return AdamW{.m = of(m),
                       .v = of(v),
                       .grad = of(g),
                       .param = of(w),
                       .lr = 0x1p-11f,
                       .beta1 = 0,
                       .beta2 = 0,
                       .eps = 0,
                       .weight_decay = 0,
                       .step = 1,
                       .rounding = rounding};
        };
        for (int64_t i = 0; i < n; ++i) g.host().set(i, i % 3 ? 1.0 : -1.0);
        to_device(g.device().data, g.host().span().data, size_t(n) * 4);
        cpu::run(args([](Mirror& x) { return x.host().span(); }));
        cuda::run(args([](Mirror& x) { return x.device(); }), device_stream());
        for (Mirror* x : {&w, &m, &v}) REQUIRE(x->same());
      });
}

TEST_CASE("updates take their factors and keys from memory, as a replayed graph needs them") {
  for (int64_t n : sizes())
    for_each_way([&](int64_t offset) {
      CAPTURE(n);
      Mirror m(Array(DType::bf16, n), offset), v(Array(DType::bf16, n), offset);
      Mirror g(Array::normal(DType::f32, n, 2), offset),
          w(Array::normal(DType::bf16, n, 1), offset);
      AdamW update{.lr = 0x1p-11f,
                   .beta1 = 0,
                   .beta2 = 0,
                   .eps = 0,
                   .weight_decay = 0,
                   .step = 1,
                   .rounding = {.random = true, .key = 9, .moments_key = 11, .first = 5}};
      const AdamWFactors f = factors_of(update);
      Mirror factors(Array(DType::f32, {f.step_size, f.v_correction, f.keep})),
          keys(Array(DType::i64, {9, 11}));
      const auto over = [&](AdamW a, auto&& of) {
        a.m = of(m), a.v = of(v), a.grad = of(g), a.param = of(w);
        return a;
      };
      cpu::run(over(update, [](Mirror& x) { return x.host().span(); }));
      // Arguments that must not count.
      update.lr = 1, update.weight_decay = 1, update.step = 4;
      update.rounding.key = update.rounding.moments_key = 3;
      update.factors_in_memory = factors.device(), update.keys_in_memory = keys.device();
      cuda::run(over(update, [](Mirror& x) { return x.device(); }), device_stream());
      for (Mirror* x : {&m, &v}) REQUIRE(x->same());
      Closeness close("adamw with factors in memory");
      REQUIRE(w.compare(close, {.dtype = DType::bf16, .K = 1, .scale = 1}) == "");

      Mirror master(Array::normal(DType::f32, n, 1), offset), copy(Array(DType::bf16, n), offset);
      MuonUpdate muon{.lr = 0.01f, .weight_decay = 0.1f};
      Mirror both(Array(DType::f32, {muon.lr, keep_of(muon)}));
      const auto on = [&](MuonUpdate a, auto&& of) {
        a.master = of(master), a.direction = of(g), a.param = of(copy);
        return a;
      };
      cpu::run(on(muon, [](Mirror& x) { return x.host().span(); }));
      muon.lr = 1, muon.factors_in_memory = both.device();
      cuda::run(on(muon, [](Mirror& x) { return x.device(); }), device_stream());
      REQUIRE(master.compare(close, {.K = 2, .scale = 1}) == "");
    });
}

TEST_CASE("bf16 moments are rounded as the CPU rounds them, bit for bit") {
  Closeness close("adamw with bf16 moments");
  for (int64_t n : sizes())
    for (DType type : {DType::bf16, DType::f16})
      for (const AdamWRounding& rounding :
           {AdamWRounding{.moments_key = 9, .first = (int64_t(1) << 34) + 3},
            AdamWRounding{.moments_key = 9, .first = 5, .at = 2, .columns = 6, .stride = 21}})
        for (bool masters : {true, false})
          for_each_way([&](int64_t offset) {
            if (!masters && type == DType::f16) return;
            CAPTURE(n, type, rounding.columns, masters);
            Mirror m(Array(DType::bf16, n), offset), v(Array(DType::bf16, n), offset);
            Mirror g(Array::normal(DType::f32, n, 2), offset),
                w(Array::normal(DType::f32, n, 1), offset), param(Array(type, n), offset);
            // Betas of 0: moments are g and g^2, rounded once to fp32.
            const auto args = [&](auto&& of) {
              return AdamW{.master = masters ? Span(of(w)) : Span{},
                           .m = of(m),
                           .v = of(v),
                           .grad = of(g),
                           .param = of(param),
                           .lr = 0.01f,
                           .beta1 = 0,
                           .beta2 = 0,
                           .eps = 1e-8f,
                           .weight_decay = 0,
                           .step = 1,
                           .rounding = rounding};
            };
            cpu::run(args([](Mirror& x) { return x.host().span(); }));
            cuda::run(args([](Mirror& x) { return x.device(); }), device_stream());
            for (Mirror* x : {&m, &v}) REQUIRE(x->same());
            REQUIRE(w.compare(close, {.K = 4, .scale = 1}) == "");
          });
}

TEST_CASE("rope rotates the heads inside a fused row, forward and back") {
  for (DType dtype : kFloats) {
    Closeness close("rope " + std::string(dtype_name(dtype)));
    for (auto [D, R, heads, gap] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{2, 1, 1, 0},
                                    {64, 32, 3, 128},
                                    {80, 40, 5, 0},
                                    {128, 64, 40, 64},
                                    {6, 3, 2, 3},
                                    {128, 32, 5, 64},
                                    {96, 36, 3, 0},
                                    {20, 8, 3, 4},
                                    {7, 2, 2, 3}})
      for_each_way([&, D = D, R = R, heads = heads, gap = gap](int64_t offset) {
        const int64_t T = 7, P = 11, stride = heads * D + gap;
        CAPTURE(D, R, heads, gap);
        Mirror x(Array::normal(dtype, T * stride, 1), offset);
        Mirror cos(Array::normal(DType::f32, P * R, 2), offset),
            sin(Array::normal(DType::f32, P * R, 3), offset);
        Mirror position(Array::ids({3, 0, 10, 5, 5, 1, 9}));
        for (bool backward : {false, true}) {
          Rope a{.x = x.host(),
                 .cos_PR = cos.host(),
                 .sin_PR = sin.host(),
                 .position_T = position.host(),
                 .T = T,
                 .heads = heads,
                 .D = D,
                 .R = R,
                 .token_stride = stride,
                 .backward = backward};
          cpu::run(a);
          a.x = x.device(), a.cos_PR = cos.device(), a.sin_PR = sin.device(),
          a.position_T = position.device();
          cuda::run(a, device_stream());
          REQUIRE(x.compare(close, {.dtype = dtype,
                                    .K = backward ? 8.0 : 2.0,
                                    .scale = 8,
                                    .sums = backward ? dtype : DType::f32}) == "");
        }
      });
  }
}

TEST_CASE("copy_blocks copies rectangles of every width and alignment") {
  for (DType dtype : {DType::bf16, DType::f32, DType::f64})
    for (int64_t unit : {1, 2, 3, 8})
      for_each_way([&](int64_t offset) {
        CAPTURE(dtype, unit);
        const int64_t from_width = 12 * unit, to_width = 20 * unit, rows = 70;
        std::vector<double> values(size_t(rows * from_width));
        for (size_t i = 0; i < values.size(); ++i) values[i] = double(i % 251);
        Mirror from(Array(dtype, values), offset), to(Array(dtype, rows * to_width), offset);
        CopyBlocks a{
            .from = from.host(), .to = to.host(), .from_width = from_width, .to_width = to_width};
        for (int64_t r = 0; r + 1 < rows; ++r)  // more than fits into one launch
          a.blocks.push_back({r, r % 3 * unit, rows - 2 - r, (r % 5) * unit, 1, (r % 9) * unit});
        cpu::run(a);
        a.from = from.device(), a.to = to.device();
        cuda::run(a, device_stream());
        REQUIRE(to.same());
        Mirror wide(Array(dtype, rows * to_width), offset);
        CopyBlocks b{
            .from = from.host(),
            .to = wide.host(),
            .from_width = from_width,
            .to_width = to_width,
            .blocks = {{0, 0, 0, 8 * unit, rows, 12 * unit}, {1, 2 * unit, 0, 0, 60, 4 * unit}}};
        cpu::run(b);
        b.from = from.device(), b.to = wide.device();
        cuda::run(b, device_stream());
        REQUIRE(wide.same());
      });
}
