#include <catch2/catch.hpp>

#include "kernels/norm.h"
#include "test/support/kernels_testing.h"

namespace kernels_norm_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

constexpr float kEps = 1e-5f;

// `more`: with the residual, or of two heads.
struct Form {
  bool more, plus_one;
};
constexpr Form kForms[] = {{false, false}, {true, false}, {false, true}, {true, true}};

struct Row {
  std::vector<double> y;
  double mean, rstd;
};

// One row, by the definition. b may be empty.
Row norm_row(NormKind kind, const std::vector<double>& x, const std::vector<double>& w,
             const std::vector<double>& b) {
  const double H = double(x.size());
  Row r{std::vector<double>(x.size()), 0, 0};
  if (kind == NormKind::layer) {
    for (double v : x) r.mean += v / H;
  }
  double variance = 0;
  for (double v : x) variance += (v - r.mean) * (v - r.mean) / H;
  r.rstd = 1 / std::sqrt(variance + double(kEps));
  for (size_t i = 0; i < x.size(); ++i)
    r.y[i] = (x[i] - r.mean) * r.rstd * w[i] + (b.empty() ? 0 : b[i]);
  return r;
}

// The factors of a norm.
std::vector<double> factors(std::vector<double> w, bool plus_one) {
  for (double& v : w) v += plus_one;
  return w;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::string name(const char* what, NormKind kind, DType dtype) {
  return std::string(what) + (kind == NormKind::rms ? " rms " : " layer ") +
         std::string(dtype_name(dtype));
}

}  // namespace

TEST_CASE("norm forward equals its definition, with and without the residual") {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType dtype : kFloats) {
      Closeness close(name("norm forward", kind, dtype));
      for_each_isa([&](const char* isa) {
        for (int64_t H : {1, 7, 33, 768, 1001})
          for (const Form& form : kForms) {
            const bool fused = form.more, plus_one = form.plus_one;
            const int64_t T = 5;
            CAPTURE(isa, H, fused, plus_one);
            const Array x = Array::normal(dtype, T * H, 1),
                        residual = Array::normal(dtype, T * H, 2);
            const Array w = Array::normal(dtype, H, 3), b = Array::normal(dtype, H, 4);
            Array y(dtype, T * H), sum(dtype, T * H), rstd(DType::f32, T), mean(DType::f32, T);
            NormForward a{.kind = kind,
                          .x_TH = x,
                          .w_H = w,
                          .plus_one = plus_one,
                          .y_TH = y,
                          .rstd_T = rstd,
                          .T = T,
                          .H = H,
                          .eps = kEps};
            if (kind == NormKind::layer) a.b_H = b, a.mean_T = mean;
            if (fused) a.residual_TH = residual, a.sum_TH = sum;
            cpu::run(a);
            std::vector<double> want_y, want_rstd, want_mean, want_sum;
            for (int64_t t = 0; t < T; ++t) {
              std::vector<double> row = x.values(t * H, H);
              for (int64_t i = 0; fused && i < H; ++i) {
                want_sum.push_back(row[i] + residual[t * H + i]);
                row[i] = sum[t * H + i];  // the norm is computed from the rounded sum
              }
              const Row r = norm_row(kind, row, factors(w.values(), plus_one),
                                     kind == NormKind::layer ? b.values() : std::vector<double>{});
              want_y.insert(want_y.end(), r.y.begin(), r.y.end());
              want_rstd.push_back(r.rstd);
              want_mean.push_back(r.mean);
            }
            // Terms of a few units: x, times rstd (large only where the row is one number) and w.
            const double scale = 4 * (H == 1 ? want_rstd[0] : 1);
            REQUIRE(close(y, want_y,
                          {.dtype = dtype, .K = double(H), .scale = scale, .sums = DType::f32}) ==
                    "");
            if (kind == NormKind::rms || H > 1)  // layer norm's variance of one number is always 0
              REQUIRE(close(rstd, want_rstd, {.K = double(H), .scale = want_rstd[0]}) == "");
            if (kind == NormKind::layer) REQUIRE(close(mean, want_mean, {.K = double(H)}) == "");
            if (fused) REQUIRE(close(sum, want_sum, {.dtype = dtype, .K = 0}) == "");
            REQUIRE((y.margin_untouched() && sum.margin_untouched() && rstd.margin_untouched()));
          }
      });
    }
}

TEST_CASE("norm of heads inside a wider buffer works in place and leaves the rest alone") {
  const int64_t T = 3, heads = 2, H = 33, stride = 100;
  for (DType dtype : kFloats) {
    Closeness close(name("norm heads", NormKind::rms, dtype));
    for_each_isa([&](const char* isa) {
      CAPTURE(isa);
      const Array before = Array::normal(dtype, T * stride, 1), w = Array::normal(dtype, H, 2);
      Array x = before, rstd(DType::f32, T * heads);
      cpu::run(NormForward{.x_TH = x,
                           .w_H = w,
                           .y_TH = x,
                           .rstd_T = rstd,
                           .T = T,
                           .H = H,
                           .heads = heads,
                           .token_stride = stride,
                           .eps = kEps});
      std::vector<double> want = before.values();
      for (int64_t t = 0; t < T; ++t)
        for (int64_t h = 0; h < heads; ++h) {
          const Row r =
              norm_row(NormKind::rms, before.values(t * stride + h * H, H), w.values(), {});
          std::copy(r.y.begin(), r.y.end(), want.begin() + t * stride + h * H);
        }
      REQUIRE(close(x, want, {.dtype = dtype, .K = double(H), .scale = 4, .sums = DType::f32}) ==
              "");
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = heads * H; i < stride; ++i)
          REQUIRE(x[t * stride + i] == before[t * stride + i]);
    });
  }
}

TEST_CASE("norm backward equals finite differences of the forward") {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType dtype : kFloats) {
      Closeness close(name("norm backward", kind, dtype));
      for (int64_t H : {2, 7, 33, 257})
        for (const Form& form : kForms) {
          const bool plus_one = form.plus_one;
          const int64_t heads = form.more ? 2 : 1;
          const int64_t T = 3, stride = heads == 1 ? H : heads * H + 5, rows = T * heads;
          const Array x = Array::normal(dtype, T * stride, 1),
                      dy = Array::normal(dtype, T * stride, 2);
          const Array w = Array::normal(dtype, H, 3),
                      dresidual = Array::normal(dtype, T * stride, 4);
          std::vector<double> want_dx = dresidual.values(), want_dw(H, 0.5), want_db(H, 0.25),
                              rstds, means;
          double largest_rstd = 0;
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t start = r / heads * stride + r % heads * H;
            const std::vector<double> row = x.values(start, H), d = dy.values(start, H);
            const auto dx = finite_difference(
                row,
                [&](const auto& v) {
                  return dot(norm_row(kind, v, factors(w.values(), plus_one), {}).y, d);
                },
                1e-5);
            const auto dw = finite_difference(w.values(), [&](const auto& v) {
              return dot(norm_row(kind, row, factors(v, plus_one), {}).y, d);
            });
            for (int64_t i = 0; i < H; ++i)
              want_dx[start + i] += dx[i], want_dw[i] += dw[i], want_db[i] += d[i];
            const Row kept = norm_row(kind, row, w.values(), {});
            rstds.push_back(kept.rstd);
            means.push_back(kept.mean);
            largest_rstd = std::max(largest_rstd, kept.rstd);
          }
          const Array rstd(DType::f32, rstds), mean(DType::f32, means);
          for_each_isa([&](const char* isa) {
            CAPTURE(isa, H, heads, plus_one);
            Array dx = dresidual, dw(DType::f32, std::vector<double>(H, 0.5)),
                  db(DType::f32, std::vector<double>(H, 0.25));
            NormBackward a{.kind = kind,
                           .dy_TH = dy,
                           .x_TH = x,
                           .w_H = w,
                           .rstd_T = rstd,
                           .plus_one = plus_one,
                           .dresidual_TH = dx,
                           .dx_TH = dx,
                           .dw_H = dw,
                           .T = T,
                           .H = H,
                           .heads = heads,
                           .token_stride = stride};
            if (kind == NormKind::layer) a.mean_T = mean, a.db_H = db;
            cpu::run(a);
            // Terms: dy w xhat rstd, products of three numbers of a few units.
            const Rule rule{
                .dtype = dtype, .K = double(H), .scale = 16 * largest_rstd, .sums = DType::f32};
            REQUIRE(close(dx, want_dx, rule) == "");
            REQUIRE(close(dw, want_dw, {.K = double(rows), .scale = 16}) == "");
            if (kind == NormKind::layer)
              REQUIRE(close(db, want_db, {.K = double(rows), .scale = 4}) == "");
            REQUIRE((dx.margin_untouched() && dw.margin_untouched() && db.margin_untouched()));
          });
        }
    }
}

TEST_CASE("norm backward may write over dy, and many rows sum into the weight gradient") {
  const int64_t T = 3000, H = 65;
  const Array x = Array::normal(DType::f32, T * H, 1), dy = Array::normal(DType::f32, T * H, 2),
              w = Array::normal(DType::f32, H, 3);
  Array y(DType::f32, T * H), rstd(DType::f32, T), mean(DType::f32, T);
  cpu::run(NormForward{.kind = NormKind::layer,
                       .x_TH = x,
                       .w_H = w,
                       .y_TH = y,
                       .rstd_T = rstd,
                       .mean_T = mean,
                       .T = T,
                       .H = H,
                       .eps = kEps});
  std::vector<double> want_dw(H), want_db(H);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t i = 0; i < H; ++i) {
      want_dw[i] += dy[t * H + i] * (x[t * H + i] - mean[t]) * rstd[t];
      want_db[i] += dy[t * H + i];
    }
  Closeness close("norm backward, 3000 rows");
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    Array apart(DType::f32, T * H), over = dy, dw(DType::f32, H), db(DType::f32, H), dw2 = dw,
                                    db2 = db;
    NormBackward a{.kind = NormKind::layer,
                   .dy_TH = dy,
                   .x_TH = x,
                   .w_H = w,
                   .rstd_T = rstd,
                   .mean_T = mean,
                   .dx_TH = apart,
                   .dw_H = dw,
                   .db_H = db,
                   .T = T,
                   .H = H};
    cpu::run(a);
    a.dy_TH = over, a.dx_TH = over, a.dw_H = dw2, a.db_H = db2;
    cpu::run(a);
    REQUIRE(over == apart);
    REQUIRE((dw == dw2 && db == db2));
    // scale: a rounding is relative to the sum so far, which is several times a term.
    REQUIRE(close(dw, want_dw, {.K = double(T), .scale = 16}) == "");
    REQUIRE(close(db, want_db, {.K = double(T), .scale = 16}) == "");
  });
}

namespace {

// What NormForward and NormBackward must give for T rows of W elements, `stride` apart.
struct Wanted {
  std::vector<double> y, dx, dw, rstd;
};
Wanted rms_norm_rows(const Array& x, const Array& dy, const std::vector<double>& f, int64_t T,
                     int64_t W, int64_t stride) {
  Wanted want{
      std::vector<double>(T * stride), std::vector<double>(T * stride), std::vector<double>(W), {}};
  for (int64_t t = 0; t < T; ++t) {
    const std::vector<double> row = x.values(t * stride, W), d = dy.values(t * stride, W);
    const Row r = norm_row(NormKind::rms, row, f, {});
    const auto dx = finite_difference(
        row, [&](const auto& v) { return dot(norm_row(NormKind::rms, v, f, {}).y, d); }, 1e-5);
    for (int64_t i = 0; i < W; ++i) {
      want.y[t * stride + i] = r.y[i], want.dx[t * stride + i] = dx[i];
      want.dw[i] += d[i] * row[i] * r.rstd;
    }
    want.rstd.push_back(r.rstd);
  }
  return want;
}

// Returns the array's elements from `first` on.
auto from(auto&& array, int64_t first) {
  auto s = array.span();
  s.data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(s.data))) +
           first * dtype_size(s.dtype);
  s.count -= first;
  return s;
}

}  // namespace

TEST_CASE("parts of rows that ranks share are normalized as whole rows are") {
  // Columns of tokens; the parts begin where the parts before end.
  const int64_t T = 3, parts[] = {33, 8, 64}, W = 105, stride = W + 7;
  for (DType dtype : kFloats)
    for (const bool plus_one : {false, true}) {
      Closeness close(name("norm shared rows", NormKind::rms, dtype));
      const Array x = Array::normal(dtype, T * stride, 1), dy = Array::normal(dtype, T * stride, 2),
                  w = Array::normal(dtype, W, 3);
      const Wanted want = rms_norm_rows(x, dy, factors(w.values(), plus_one), T, W, stride);
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, plus_one);
        // Calls fn(first, H) for each part.
        const auto each = [&](const auto& fn) {
          int64_t first = 0;
          for (const int64_t H : parts) fn(first, H), first += H;
        };
        Array y(dtype, T * stride), dx(dtype, T * stride), dw(DType::f32, W), rstd(DType::f32, T);
        std::vector<double> squares(T), products(T);
        const auto add = [&](const NormSums& args, std::vector<double>& into) {
          Array sum(DType::f32, T);
          NormSums a = args;
          a.sum_T = sum, a.T = T, a.token_stride = stride;
          cpu::run(a);
          for (int64_t t = 0; t < T; ++t) into[size_t(t)] += sum[t];
        };
        each([&](int64_t first, int64_t H) {
          NormSums a{.x_TH = from(x, first)};
          a.H = H;
          add(a, squares);
        });
        const Array all_squares(DType::f32, squares);
        each([&](int64_t first, int64_t H) {
          cpu::run(NormForward{.x_TH = from(x, first),
                               .w_H = from(w, first),
                               .plus_one = plus_one,
                               .y_TH = from(y, first),
                               .rstd_T = rstd,
                               .T = T,
                               .H = H,
                               .token_stride = stride,
                               .eps = kEps,
                               .sum_T = all_squares,
                               .width = W});
        });
        each([&](int64_t first, int64_t H) {
          NormSums a{.x_TH = from(x, first),
                     .dy_TH = from(dy, first),
                     .w_H = from(w, first),
                     .rstd_T = rstd,
                     .plus_one = plus_one};
          a.H = H;
          add(a, products);
        });
        const Array all_products(DType::f32, products);
        each([&](int64_t first, int64_t H) {
          cpu::run(NormBackward{.dy_TH = from(dy, first),
                                .x_TH = from(x, first),
                                .w_H = from(w, first),
                                .rstd_T = rstd,
                                .plus_one = plus_one,
                                .dx_TH = from(dx, first),
                                .dw_H = from(dw, first),
                                .T = T,
                                .H = H,
                                .token_stride = stride,
                                .sum_T = all_products,
                                .width = W});
        });
        const double K = double(W);
        REQUIRE(close(rstd, want.rstd, {.K = K, .scale = 4}) == "");
        REQUIRE(close(y, want.y, {.dtype = dtype, .K = K, .scale = 4, .sums = DType::f32}) == "");
        REQUIRE(close(dx, want.dx, {.dtype = dtype, .K = K, .scale = 16, .sums = DType::f32}) ==
                "");
        REQUIRE(close(dw, want.dw, {.K = double(T), .scale = 16}) == "");
        REQUIRE((y.margin_untouched() && dx.margin_untouched() && dw.margin_untouched()));
      });
    }
}

}  // namespace kernels_norm_test
