#include "kernels/norm.h"
#include "kernels/cuda/device/norm_grid.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

std::string name(const char* what, NormKind kind, DType dtype) {
  return std::string(what) + (kind == NormKind::rms ? " rms " : " layer ") +
         std::string(dtype_name(dtype));
}

struct Sizes {
  int64_t T, heads, H, gap;  // gap: elements of a token after its heads
  bool plus_one = false;
};

struct Operands {
  Mirror x, residual, w, b, sum, y, rstd, mean, dy, dresidual, dx, dw, db;
  Operands(const Sizes& s, DType type, int64_t offset)
      : x(Array::normal(type, s.T * (s.heads * s.H + s.gap), 1), offset),
        residual(Array::normal(type, x.host().size(), 2), offset),
        w(Array::normal(type, s.H, 3), offset),
        b(Array::normal(type, s.H, 4), offset),
        sum(Array(type, x.host().size()), offset),
        y(Array(type, x.host().size()), offset),
        rstd(Array(DType::f32, s.T * s.heads)),
        mean(Array(DType::f32, s.T * s.heads)),
        dy(Array::normal(type, x.host().size(), 5), offset),
        dresidual(Array::normal(type, x.host().size(), 6), offset),
        dx(Array(type, x.host().size()), offset),
        dw(Array::normal(DType::f32, s.H, 7), offset),
        db(Array::normal(DType::f32, s.H, 8), offset) {}
};

// `of` returns the span of a mirror on the host or on the device.
template <class Of>
NormForward forward(Operands& o, const Sizes& s, NormKind kind, bool fused, const Of& of) {
  NormForward f{.kind = kind,
                .x_TH = of(o.x),
                .w_H = of(o.w),
                .plus_one = s.plus_one,
                .y_TH = of(o.y),
                .rstd_T = of(o.rstd),
                .T = s.T,
                .H = s.H,
                .heads = s.heads,
                .token_stride = s.heads * s.H + s.gap};
  if (kind == NormKind::layer) f.b_H = of(o.b), f.mean_T = of(o.mean);
  if (fused) f.residual_TH = of(o.residual), f.sum_TH = of(o.sum);
  return f;
}
template <class Of>
NormBackward backward(Operands& o, const Sizes& s, NormKind kind, bool fused, const Of& of) {
  NormBackward g{.kind = kind,
                 .dy_TH = of(o.dy),
                 .x_TH = fused ? of(o.sum) : of(o.x),
                 .w_H = of(o.w),
                 .rstd_T = of(o.rstd),
                 .plus_one = s.plus_one,
                 .dx_TH = of(o.dx),
                 .dw_H = of(o.dw),
                 .T = s.T,
                 .H = s.H,
                 .heads = s.heads,
                 .token_stride = s.heads * s.H + s.gap};
  if (kind == NormKind::layer) g.mean_T = of(o.mean), g.db_H = of(o.db);
  if (fused) g.dresidual_TH = of(o.dresidual);
  return g;
}
Span on_host(Mirror& m) { return m.host(); }
Span on_device(Mirror& m) { return m.device(); }

void check(const Sizes& s, NormKind kind, DType type, bool fused, int64_t offset,
           Closeness& close) {
  CAPTURE(s.T, s.heads, s.H, s.gap, s.plus_one, fused);
  Operands o(s, type, offset);
  cpu::run(forward(o, s, kind, fused, on_host));
  cuda::run(forward(o, s, kind, fused, on_device), device_stream());
  const double K = double(s.H), rstd = s.H == 1 ? 1e3 : 1;
  REQUIRE(o.y.compare(close, {.dtype = type, .K = K, .scale = 4 * rstd, .sums = DType::f32}) == "");
  if (fused) REQUIRE(o.sum.same());
  if (kind == NormKind::rms || s.H > 1) REQUIRE(o.rstd.compare(close, {.K = K, .scale = 4}) == "");
  if (kind == NormKind::layer) REQUIRE(o.mean.compare(close, {.K = K}) == "");
  if (s.H == 1) return;  // the gradient of a row of one number is only rounding errors
  cpu::run(backward(o, s, kind, fused, on_host));
  cuda::run(backward(o, s, kind, fused, on_device), device_stream());
  REQUIRE(o.dx.compare(close, {.dtype = type, .K = K, .scale = 8, .sums = DType::f32}) == "");
  const double rows = double(s.T * s.heads);
  REQUIRE(o.dw.compare(close, {.K = K + rows, .scale = 8}) == "");
  if (kind == NormKind::layer) REQUIRE(o.db.compare(close, {.K = K + rows, .scale = 8}) == "");
}

}  // namespace

TEST_CASE("norms: forward and backward equal the CPU's, plain, fused and of heads in wider rows") {
  const int64_t many = size_of_test(40, 1000);
  const Sizes plain[] = {{3, 1, 1, 0},    {5, 1, 7, 0},    {5, 1, 64, 0},  {many, 1, 768, 0},
                         {3, 1, 1001, 0}, {2, 1, 4104, 0}, {2, 1, 8192, 0}};
  const Sizes heads[] = {{7, 3, 64, 128}, {many, 5, 128, 0}, {3, 2, 33, 34}, {2, 2, 80, 16}};
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType type : kFloats) {
      Closeness close(name("norm", kind, type));
      for_each_way([&](int64_t offset) {
        for (const Sizes& s : plain)
          for (bool fused : {false, true})
            if (s.H < 4000 || (fused && offset == 0)) check(s, kind, type, fused, offset, close);
        for (const Sizes& s : heads) check(s, kind, type, false, offset, close);
      });
    }
}

TEST_CASE("norms work in place, and the backward's sums have the same bits every time") {
  const Sizes s{size_of_test(300, 5000), 1, 256, 0};
  for (DType type : kFloats) {
    Closeness close(name("norm in place", NormKind::rms, type));
    std::vector<Array> first;
    for_each_order([&] {
      Operands o(s, type, 0);
      cuda::run(forward(o, s, NormKind::rms, false, on_device), device_stream());
      NormForward f = forward(o, s, NormKind::rms, false, on_device);
      NormBackward g = backward(o, s, NormKind::rms, false, on_device);
      g.dx_TH = o.dy.device();
      cuda::run(backward(o, s, NormKind::rms, false, on_device), device_stream());
      const Array dw = o.dw.result(), dx = o.dx.result(), y = o.y.result();
      f.y_TH = o.x.device();
      cuda::run(g, device_stream());
      cuda::run(f, device_stream());
      REQUIRE(close(o.dy.result(), dx.values(), {.dtype = type, .K = 0}) == "");
      REQUIRE(close(o.x.result(), y.values(), {.dtype = type, .K = 0}) == "");
      if (first.empty()) first = {dw};
      REQUIRE(first[0] == dw);
    });
  }
}

TEST_CASE("norms that leave multiprocessors to others give the same rows") {
  CHECK(mtrain::kernels::cuda::norm_rows_at_once(256, 132, 0) == 132 * 3);
  CHECK(mtrain::kernels::cuda::norm_rows_at_once(256, 132, 16) == 116 * 3);
  CHECK(mtrain::kernels::cuda::norm_rows_at_once(512, 132, 500) == 2);  // one is always used
  // Plain, of heads, and longer than registers hold: one kernel each.
  for (const Sizes& s :
       {Sizes{size_of_test(400, 5000), 1, 256, 0}, Sizes{700, 2, 64, 8}, Sizes{70, 1, 1001, 0}})
    for (DType type : kFloats) {
      Closeness close(name("norm with a margin", NormKind::layer, type));
      for (int64_t margin : {4, 1000}) {
        CAPTURE(s.H, margin);
        Operands a(s, type, 0), b(s, type, 0);
        cuda::run(forward(a, s, NormKind::layer, false, on_device), device_stream());
        NormForward f = forward(b, s, NormKind::layer, false, on_device);
        f.sm_margin = margin;
        cuda::run(f, device_stream());
        REQUIRE(b.y.result() == a.y.result());
        cuda::run(backward(a, s, NormKind::layer, false, on_device), device_stream());
        NormBackward g = backward(b, s, NormKind::layer, false, on_device);
        g.sm_margin = margin;
        cuda::run(g, device_stream());
        REQUIRE(b.dx.result() == a.dx.result());
        // Other rows of threads compute the terms of the sums.
        const double K = double(s.T * s.heads);
        REQUIRE(close(b.dw.result(), a.dw.result().values(), {.K = K, .scale = 8}) == "");
        REQUIRE(close(b.db.result(), a.db.result().values(), {.K = K, .scale = 8}) == "");
      }
    }
}

TEST_CASE("norms by 1 + weight equal the CPU's") {
  // In registers of one warp and of many, in longer rows, and element by element.
  for (const Sizes& s : {Sizes{7, 3, 64, 128, true}, Sizes{9, 1, 768, 0, true},
                         Sizes{2, 1, 8192, 0, true}, Sizes{3, 1, 1001, 0, true}})
    for (NormKind kind : {NormKind::rms, NormKind::layer})
      for (DType type : kFloats) {
        Closeness close(name("norm by 1 + weight", kind, type));
        for (const bool fused : {false, true})
          if (!fused || s.heads == 1) check(s, kind, type, fused, 0, close);
      }
}

TEST_CASE("norms of rows that ranks share equal the CPU's, as do the sums of their parts") {
  for (const Sizes& s : {Sizes{7, 1, 64, 128}, Sizes{3, 1, 1001, 3, true},
                         Sizes{size_of_test(5, 700), 1, 768, 0, true}})
    for (DType type : kFloats) {
      Closeness close(name("norm shared rows", NormKind::rms, type));
      for_each_way([&](int64_t offset) {
        CAPTURE(s.T, s.H, s.gap, s.plus_one, offset);
        Operands o(s, type, offset);
        Mirror squares(Array(DType::f32, s.T)), products(Array(DType::f32, s.T));
        const double K = double(s.H);
        const auto sums = [&](Mirror& to, bool of_gradient, const auto& of) {
          NormSums a{.x_TH = of(o.x)};
          if (of_gradient)
            a.dy_TH = of(o.dy), a.w_H = of(o.w), a.rstd_T = of(o.rstd), a.plus_one = s.plus_one;
          a.sum_T = of(to), a.T = s.T, a.H = s.H, a.token_stride = s.H + s.gap;
          return a;
        };
        cpu::run(sums(squares, false, on_host));
        cuda::run(sums(squares, false, on_device), device_stream());
        REQUIRE(squares.compare(close, {.K = K, .scale = 16}) == "");
        // The full row has twice as many elements as this part.
        const auto shared = [&](auto args, ConstSpan sum) {
          args.sum_T = sum, args.width = 2 * s.H;
          return args;
        };
        cpu::run(shared(forward(o, s, NormKind::rms, false, on_host), on_host(squares)));
        cuda::run(shared(forward(o, s, NormKind::rms, false, on_device), on_device(squares)),
                  device_stream());
        REQUIRE(o.y.compare(close, {.dtype = type, .K = K, .scale = 8, .sums = DType::f32}) == "");
        REQUIRE(o.rstd.compare(close, {.K = K, .scale = 4}) == "");
        cpu::run(sums(products, true, on_host));
        cuda::run(sums(products, true, on_device), device_stream());
        REQUIRE(products.compare(close, {.K = K, .scale = 32}) == "");
        cpu::run(shared(backward(o, s, NormKind::rms, false, on_host), on_host(products)));
        cuda::run(shared(backward(o, s, NormKind::rms, false, on_device), on_device(products)),
                  device_stream());
        REQUIRE(o.dx.compare(close, {.dtype = type, .K = K, .scale = 16, .sums = DType::f32}) ==
                "");
        REQUIRE(o.dw.compare(close, {.K = K + double(s.T), .scale = 16}) == "");
      });
    }
}
