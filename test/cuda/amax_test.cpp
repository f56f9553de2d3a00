// Kernels that write activations and their gradients also store the largest absolute value that
// they wrote.
#include <algorithm>
#include <cmath>

#include "kernels/activation.h"
#include "kernels/fp8.h"
#include "kernels/norm.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

// The largest finite absolute value of `before` and x.
double largest(double before, const Array& x) {
  for (const double v : x.values())
    if (std::isfinite(v)) before = std::max(before, std::abs(v));
  return before;
}

// Random numbers; some in the first and the last row have results that are not finite.
Array numbers(DType type, int64_t n, uint64_t seed) {
  Array x = Array::normal(type, n, seed);
  if (n > 40) x.set(3, INFINITY), x.set(7, -INFINITY), x.set(n - 2, NAN);
  return x;
}

// `run(of, amax)` runs a kernel on the CPU or the device, where `of` says that the arrays are, and
// writes `y`. Each gives the maximum of its own result, to the bit. A larger maximum from before is
// kept.
template <class Run>
void expect_amax(Mirror& y, const Run& run) {
  for (const float before : {0.0f, 1e20f}) {
    CAPTURE(before);
    Mirror amax(Array::one(DType::f32, before));
    run([](Mirror& m) { return m.host().span(); }, amax.host().span(),
        [](const auto& a) { cpu::run(a); });
    REQUIRE(amax.host()[0] == largest(before, y.host()));
    run([](Mirror& m) { return m.device(); }, amax.device(),
        [](const auto& a) { cuda::run(a, device_stream()); });
    REQUIRE(amax.result()[0] == largest(before, y.result()));
  }
}

}  // namespace

TEST_CASE("norms store the largest absolute value of their results") {
  struct Sizes {
    int64_t T, H;
  };
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType type : kFloats)
      for (const Sizes& s : {Sizes{1, 8}, {40, 64}, {9, 768}, {3, 1001}, {2, 4104}, {2, 20000}})
        for_each_way([&](int64_t offset) {
          CAPTURE(s.T, s.H, type, offset);
          const int64_t n = s.T * s.H;
          Mirror x(numbers(type, n, 1), offset), w(Array::normal(type, s.H, 2), offset),
              y(Array(type, n), offset), rstd(Array(DType::f32, s.T)), mean(Array(DType::f32, s.T)),
              dy(Array::normal(type, n, 3), offset), dx(Array(type, n), offset),
              dw(Array(DType::f32, s.H));
          expect_amax(y, [&](const auto& of, Span amax, const auto& run) {
            NormForward f{.kind = kind,
                          .x_TH = of(x),
                          .w_H = of(w),
                          .y_TH = of(y),
                          .rstd_T = of(rstd),
                          .amax = amax,
                          .T = s.T,
                          .H = s.H};
            if (kind == NormKind::layer) f.mean_T = of(mean);
            run(f);
          });
          expect_amax(dx, [&](const auto& of, Span amax, const auto& run) {
            NormBackward g{.kind = kind,
                           .dy_TH = of(dy),
                           .x_TH = of(x),
                           .w_H = of(w),
                           .rstd_T = of(rstd),
                           .dx_TH = of(dx),
                           .dw_H = of(dw),
                           .amax = amax,
                           .T = s.T,
                           .H = s.H};
            if (kind == NormKind::layer) g.mean_T = of(mean);
            run(g);
          });
        });
}

TEST_CASE("activations store the largest absolute value of their results") {
  for (DType type : kFloats)
    for (int64_t F :
         {int64_t(1), int64_t(7), int64_t(64), int64_t(1000), size_of_test(4100, 70000)})
      for_each_way([&](int64_t offset) {
        const int64_t T = 3, n = T * F;
        CAPTURE(F, type, offset);
        Mirror x(numbers(type, 2 * n, 1), offset), dy(Array::normal(type, n, 2), offset),
            y(Array(type, n), offset), dx(Array(type, 2 * n), offset),
            u(numbers(type, n, 3), offset), du(Array(type, n), offset);
        expect_amax(y, [&](const auto& of, Span amax, const auto& run) {
          run(SwigluForward{of(x), of(y), T, F, amax});
        });
        expect_amax(y, [&](const auto& of, Span amax, const auto& run) {
          run(SwigluForward{of(x), of(y), T, F, amax, {}, GateFunction::gelu_tanh});
        });
        expect_amax(dx, [&](const auto& of, Span amax, const auto& run) {
          run(SwigluBackward{
              of(x), of(dy), of(dx), {}, T, F, amax, {}, {}, GateFunction::gelu_tanh});
        });
        expect_amax(dx, [&](const auto& of, Span amax, const auto& run) {
          run(SwigluBackward{of(x), of(dy), of(dx), {}, T, F, amax});
        });
        for (bool tanh : {true, false}) {
          expect_amax(y, [&](const auto& of, Span amax, const auto& run) {
            run(GeluForward{of(u), of(y), n, tanh, amax});
          });
          expect_amax(du, [&](const auto& of, Span amax, const auto& run) {
            run(GeluBackward{of(u), of(dy), of(du), {}, n, tanh, amax});
          });
        }
      });
}

TEST_CASE("swiglu's and geglu's backward compute the forward's output to the bit") {
  for (DType type : kFloats)
    for (const GateFunction gate : {GateFunction::silu, GateFunction::gelu_tanh}) {
      CAPTURE(type, int(gate));
      const int64_t T = 5, F = 1000;
      Mirror x(Array::normal(type, 2 * T * F, 1, 3)), dy(Array::normal(type, T * F, 2)),
          y(Array(type, T * F)), dx(Array(type, 2 * T * F)), again(Array(type, T * F));
      cpu::run(SwigluForward{x.host(), y.host(), T, F, {}, {}, gate});
      cpu::run(
          SwigluBackward{x.host(), dy.host(), dx.host(), again.host(), T, F, {}, {}, {}, gate});
      REQUIRE(y.host() == again.host());
      cuda::run(SwigluForward{x.device(), y.device(), T, F, {}, {}, gate}, device_stream());
      cuda::run(
          SwigluBackward{
              x.device(), dy.device(), dx.device(), again.device(), T, F, {}, {}, {}, gate},
          device_stream());
      REQUIRE(y.result() == again.result());
    }
}

TEST_CASE("the scale from a maximum is the scale of the tensor, and the maximum becomes 0") {
  for (DType type : {DType::f8e4m3, DType::f8e5m2})
    for (float size : {0.0f, 1e-45f, 1e-30f, 0.37f, 448.0f, 3e38f}) {
      CAPTURE(type, size);
      Array x = Array::one(DType::f32, size), amax(DType::f32, 1), scale(DType::f32, 1),
            inverse(DType::f32, 1);
      cpu::run(Amax{x, amax, scale, inverse, type, 2});
      Mirror written(Array::one(DType::f32, size)), s(Array(DType::f32, 1)),
          i(Array(DType::f32, 1));
      cpu::run(ScaleFromAmax{written.host(), s.host(), i.host(), type, 2});
      REQUIRE(s.host() == scale);
      REQUIRE(i.host() == inverse);
      REQUIRE(written.host()[0] == 0);
      cuda::run(ScaleFromAmax{written.device(), s.device(), i.device(), type, 2}, device_stream());
      REQUIRE(s.same());
      REQUIRE(i.same());
      REQUIRE(written.same());
    }
}
