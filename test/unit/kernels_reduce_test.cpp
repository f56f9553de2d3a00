#include <catch2/catch.hpp>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "test/support/kernels_testing.h"

namespace kernels_reduce_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

std::string name(const char* what, DType dtype) {
  return std::string(what) + " " + std::string(dtype_name(dtype));
}

}  // namespace

TEST_CASE("sum and sum of squares add in fp64 to the earlier value") {
  for (DType dtype : kFloats) {
    Closeness close(name("sum, sum of squares", dtype));
    for (int64_t n : {0, 1, 7, 1001, 32768, 100003}) {
      const Array x = Array::normal(dtype, n, 1);
      long double sum = 2, squares = 3;
      for (double v : x.values()) sum += v, squares += v * v;
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, n);
        Array a = Array::one(DType::f64, 2), b = Array::one(DType::f64, 3);
        cpu::run(Sum{.x = x, .out = a});
        cpu::run(SumSquares{.x = x, .out = b});
        REQUIRE(close(a, {double(sum)}, {.dtype = DType::f64, .K = double(n + 1), .scale = 4}) ==
                "");
        // All terms are positive: each of up to some thousand roundings in a lane is relative to a
        // sum that only grows.
        REQUIRE(close(b, {double(squares)},
                      {.dtype = DType::f64, .K = 256, .scale = double(squares)}) == "");
      });
    }
  }
}

TEST_CASE("clipping scales to the largest norm and never up") {
  const auto clip = [](double squares, float max_norm, double loss = 1) {
    const Array s = Array::one(DType::f64, squares), l = Array::one(DType::f64, loss);
    Array norm(DType::f32, 1), scale(DType::f32, 1);
    cpu::run(
        ClipScale{.sum_squares = s, .loss = l, .norm = norm, .scale = scale, .max_norm = max_norm});
    return std::pair(norm[0], scale[0]);
  };
  REQUIRE(clip(16, 1).first == 4);
  REQUIRE(clip(16, 1).second == Approx(1 / (4 + 1e-6)));
  REQUIRE(clip(0.25, 1) == std::pair(0.5, 1.0));
  REQUIRE(clip(16, 0) == std::pair(4.0, 1.0));  // 0 turns clipping off
  REQUIRE(clip(0, 1) == std::pair(0.0, 1.0));
  REQUIRE(std::isnan(clip(NAN, 1).second));
  // Finite in fp64, and infinite as the fp32 that the host sees.
  REQUIRE(std::isinf(clip(1e80, 1).first));
  REQUIRE(std::isnan(clip(1e80, 1).second));
  REQUIRE(std::isnan(clip(1e80, 0).second));
  // Gradients may be finite although the loss is not.
  REQUIRE(clip(16, 1, INFINITY).first == 4);
  for (double loss : {double(INFINITY), -double(INFINITY), double(NAN)})
    for (float max_norm : {0.0f, 1.0f}) REQUIRE(std::isnan(clip(16, max_norm, loss).second));
  const Array squares = Array::one(DType::f64, 16);
  Array norm(DType::f32, 1), scale(DType::f32, 1);
  cpu::run(ClipScale{.sum_squares = squares, .norm = norm, .scale = scale, .max_norm = 8});
  REQUIRE(scale[0] == 1);  // the loss is optional
}

TEST_CASE("clipping sees unscaled gradients, and copies that are not finite") {
  const auto clip = [](std::vector<double> squares, float max_norm, double unscale) {
    const Array s(DType::f64, squares);
    Array norm(DType::f32, 1), scale(DType::f32, 1);
    cpu::run(ClipScale{
        .sum_squares = s, .norm = norm, .scale = scale, .max_norm = max_norm, .unscale = unscale});
    return std::pair(norm[0], scale[0]);
  };
  const double unscale = 0x1p-16;
  REQUIRE(clip({16 * 0x1p32, 1e9}, 8, unscale) == std::pair(4.0, unscale));
  REQUIRE(clip({16 * 0x1p32}, 0, unscale) == std::pair(4.0, unscale));
  REQUIRE(clip({16 * 0x1p32}, 1, unscale).second == Approx(unscale / (4 + 1e-6)));
  for (double bad : {double(INFINITY), double(NAN)}) {
    REQUIRE(std::isnan(clip({16, bad}, 1, unscale).first));
    REQUIRE(std::isnan(clip({16, bad}, 1, unscale).second));
    REQUIRE(std::isnan(clip({bad, 16}, 1, unscale).second));
  }
}

TEST_CASE("a norm above its limit makes the factor NaN, and stays as it is") {
  const auto clip = [](double squares, double limit, bool in_memory) {
    const Array s = Array::one(DType::f64, squares);
    const Array arguments(DType::f64, std::vector{0.5, limit});
    Array norm(DType::f32, 1), scale(DType::f32, 1);
    cpu::run(ClipScale{.sum_squares = s,
                       .norm = norm,
                       .scale = scale,
                       .max_norm = 8,
                       .unscale = in_memory ? 7 : 0.5,
                       .limit = in_memory ? -1 : limit,
                       .arguments_in_memory = in_memory ? ConstSpan(arguments) : ConstSpan()});
    return std::pair(norm[0], scale[0]);
  };
  for (const bool in_memory : {false, true}) {
    REQUIRE(clip(64, 4, in_memory) == std::pair(4.0, 0.5));
    REQUIRE(clip(64, 3.999, in_memory).first == 4);
    REQUIRE(std::isnan(clip(64, 3.999, in_memory).second));
    // The rounded norm decides, which the host sees: 1e8 + 1 is 1e8 in fp32.
    REQUIRE_FALSE(std::isnan(clip(4 * (1e8 + 1) * (1e8 + 1), 1e8, in_memory).second));
  }
}

TEST_CASE("column sums add to the earlier values") {
  for (DType dtype : kFloats) {
    Closeness close(name("column sum", dtype));
    for (int64_t N : {1, 7, 33, 1001})
      for (int64_t T : {0, 1, 6, 999}) {
        const Array x = Array::normal(dtype, T * N, 1);
        std::vector<double> want(N, 0.5);
        for (int64_t t = 0; t < T; ++t)
          for (int64_t i = 0; i < N; ++i) want[i] += x[t * N + i];
        for_each_isa([&](const char* isa) {
          CAPTURE(isa, N, T);
          Array out(DType::f32, std::vector<double>(N, 0.5));
          cpu::run(ColumnSum{.x_TN = x, .out_N = out, .T = T, .N = N});
          // scale: a rounding is relative to the sum so far, which is several times a term.
          REQUIRE(close(out, want, {.K = double(T + 1), .scale = 16}) == "");
          REQUIRE(out.margin_untouched());
        });
      }
  }
}

TEST_CASE("the first number that is not finite is found wherever it is") {
  for (DType dtype : kFloats)
    for_each_isa([&](const char* isa) {
      const int64_t n = 100003;
      Array x = Array::normal(dtype, n, 1), out(DType::i64, 1);
      const int64_t& found = *out.span().as<int64_t>();
      cpu::run(FirstNonFinite{.x = x, .out = out});
      REQUIRE(found == -1);
      for (int64_t at : {n - 1, n - 20, int64_t(40000), int64_t(32768), int64_t(17), int64_t(0)}) {
        CAPTURE(isa, at);
        x.set(at, at % 2 ? NAN : -INFINITY);
        cpu::run(FirstNonFinite{.x = x, .out = out});
        REQUIRE(found == at);
      }
      cpu::run(FirstNonFinite{.x = Array(dtype, 0), .out = out});
      REQUIRE(found == -1);
    });
}

TEST_CASE("AdamW equals its definition over several steps") {
  Closeness close("adamw");
  for (int64_t n : {1, 7, 1001, 40001})
    for (const auto& [clipped, decoupled, copy] : {std::tuple{false, true, DType::bf16},
                                                   {true, true, DType::bf16},
                                                   {false, false, DType::bf16},
                                                   {true, false, DType::bf16},
                                                   {true, true, DType::f16}})
      for_each_isa([&, clipped = clipped, decoupled = decoupled, copy = copy](const char* isa) {
        CAPTURE(isa, n, clipped, decoupled, copy);
        Array master = Array::normal(DType::f32, n, 1), m(DType::f32, n), v(DType::f32, n),
              param(copy, n);
        const Array scale = Array::one(DType::f32, 0.25);
        std::vector<double> w = master.values(), m64(n), v64(n);
        const double lr = 1e-2f, b1 = 0.9f, b2 = 0.95f, eps = 1e-8f, decay = 0.1f;
        for (int64_t step = 1; step <= 3; ++step) {
          const Array grad = Array::normal(DType::f32, n, 10 + step);
          AdamW a{.master = master,
                  .m = m,
                  .v = v,
                  .grad = grad,
                  .param = param,
                  .lr = float(lr),
                  .beta1 = float(b1),
                  .beta2 = float(b2),
                  .eps = float(eps),
                  .weight_decay = float(decay),
                  .decoupled_decay = decoupled,
                  .step = step};
          if (clipped) a.grad_scale = scale;
          cpu::run(a);
          for (int64_t i = 0; i < n; ++i) {
            const double g = grad[i] * (clipped ? 0.25 : 1) + (decoupled ? 0 : decay * w[i]);
            m64[i] = b1 * m64[i] + (1 - b1) * g;
            v64[i] = b2 * v64[i] + (1 - b2) * g * g;
            const double mhat = m64[i] / (1 - std::pow(b1, double(step))),
                         vhat = v64[i] / (1 - std::pow(b2, double(step)));
            w[i] -= lr * (mhat / (std::sqrt(vhat) + eps) + (decoupled ? decay * w[i] : 0));
          }
        }
        // K: three steps of a few roundings each; scale: the weights and the gradients are about 1.
        REQUIRE(close(master, w, {.K = 12}) == "");
        REQUIRE(close(m, m64, {.K = 12}) == "");
        REQUIRE(close(v, v64, {.K = 12}) == "");
        Array rounded(copy, master.values());
        REQUIRE(param == rounded);
        REQUIRE((master.margin_untouched() && m.margin_untouched() && v.margin_untouched()));
      });
}

namespace {

// One step from `w` on bf16 weights alone, without rounding; the update is lr for a gradient of any
// size.
Array without_master(const Array& w, float lr, AdamWRounding rounding) {
  const int64_t n = w.size();
  Array param = w, m(DType::f32, n), v(DType::f32, n);
  const Array grad(DType::f32, std::vector<double>(size_t(n), 1.0));
  cpu::run(AdamW{.m = m,
                 .v = v,
                 .grad = grad,
                 .param = param,
                 .lr = lr,
                 .beta1 = 0,
                 .beta2 = 0,
                 .eps = 0,
                 .weight_decay = 0,
                 .step = 1,
                 .rounding = rounding});
  REQUIRE((param.margin_untouched() && m.margin_untouched() && v.margin_untouched()));
  return param;
}
double mean(const Array& x) {
  double sum = 0;
  for (double v : x.values()) sum += v;
  return sum / double(x.size());
}

}  // namespace

TEST_CASE("without master weights, updates below half a step are kept on average") {
  const int64_t n = 200000;
  // Spaced 2^-8 below 1, 2^-7 above: 2^-12 is a sixteenth and a thirty-second of a step.
  const Array one(DType::bf16, std::vector<double>(size_t(n), 1.0)),
      more(DType::bf16, std::vector<double>(size_t(n), -1.5));
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    const float lr = 0x1p-12f;
    REQUIRE(without_master(one, lr, {}) == one);  // rounded to nearest, it never changes
    // The mean of n numbers that are a step d apart with probability p: d sqrt(p (1 - p) / n); six
    // of these.
    const auto allowed = [&](double d, double p) {
      return 6 * d * std::sqrt(p * (1 - p) / double(n));
    };
    const Array below = without_master(one, lr, {.random = true, .key = 7});
    CHECK(std::abs(mean(below) - (1 - lr)) < allowed(0x1p-8, 0x1p-4));
    for (double w : below.values()) REQUIRE((w == 1 || w == 1 - 0x1p-8));
    const Array beyond = without_master(more, lr, {.random = true, .key = 7});
    CHECK(std::abs(mean(beyond) - (-1.5 - lr)) < allowed(0x1p-7, 0x1p-5));
    CHECK(!(without_master(one, lr, {.random = true, .key = 8}) == below));
  });
}

TEST_CASE("stochastic rounding depends on the element's number alone") {
  const int64_t rows = 13, columns = 37, n = rows * columns;
  const AdamWRounding all{.random = true, .key = 3, .first = 0};
  const Array start = Array::normal(DType::bf16, n, 5);
  const auto cut = [&](const Array& from, const std::vector<int64_t>& where) {
    std::vector<double> values;
    for (int64_t i : where) values.push_back(from[i]);
    return Array(DType::bf16, values);
  };
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    const Array whole = without_master(start, 1e-3f, all);
    std::vector<int64_t> range, block;
    for (int64_t i = 101; i < 350; ++i) range.push_back(i);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 11; c < 30; ++c) block.push_back(r * columns + c);
    AdamWRounding part = all;
    part.first = 101;
    REQUIRE(without_master(cut(start, range), 1e-3f, part) == cut(whole, range));
    // Columns 11 to 29, from the block's element 40 on.
    const std::vector<int64_t> rest(block.begin() + 40, block.end());
    part = {.random = true, .key = 3, .first = 11, .at = 40, .columns = 19, .stride = columns};
    REQUIRE(without_master(cut(start, rest), 1e-3f, part) == cut(whole, rest));
  });
  const Array odd(DType::bf16, {INFINITY, -INFINITY, NAN, 0.0});
  const Array got = without_master(odd, 0, all);
  CHECK((got[0] == INFINITY && got[1] == -INFINITY && std::isnan(got[2]) && got[3] == 0));
}

TEST_CASE("any number of threads gives the same bits") {
  const int64_t T = 700, H = 130, V = 9001;
  const auto all = [&](int threads) {
    ThreadPool pool(threads);
    ThreadPool::Scope scope(&pool);
    std::vector<Array> out;
    const auto fresh = [&](DType dtype, int64_t n) -> Array& { return out.emplace_back(dtype, n); };
    out.reserve(40);
    const Array x = Array::normal(DType::f32, T * H, 1), dy = Array::normal(DType::f32, T * H, 2),
                w = Array::normal(DType::f32, H, 3);
    Array &y = fresh(DType::f32, T * H), &rstd = fresh(DType::f32, T), &mean = fresh(DType::f32, T);
    cpu::run(NormForward{.kind = NormKind::layer,
                         .x_TH = x,
                         .w_H = w,
                         .y_TH = y,
                         .rstd_T = rstd,
                         .mean_T = mean,
                         .T = T,
                         .H = H});
    cpu::run(NormBackward{.kind = NormKind::layer,
                          .dy_TH = dy,
                          .x_TH = x,
                          .w_H = w,
                          .rstd_T = rstd,
                          .mean_T = mean,
                          .dx_TH = fresh(DType::f32, T * H),
                          .dw_H = fresh(DType::f32, H),
                          .db_H = fresh(DType::f32, H),
                          .T = T,
                          .H = H});
    cpu::run(ColumnSum{.x_TN = x, .out_N = fresh(DType::f32, H), .T = T, .N = H});
    cpu::run(Sum{.x = x, .out = fresh(DType::f64, 1)});
    cpu::run(SumSquares{.x = x, .out = fresh(DType::f64, 1)});
    cpu::run(
        SwigluForward{.gate_up_T2F = x, .y_TF = fresh(DType::f32, T * H / 2), .T = T, .F = H / 2});
    cpu::run(GeluBackward{.x = x, .dy = dy, .dx = fresh(DType::f32, T * H), .count = T * H});
    cpu::run(Dropout{.x = x, .y = fresh(DType::f32, T * H), .key = 5, .first_index = 3, .p = 0.5f});
    Array& logits = out.emplace_back(Array::normal(DType::f32, 16 * V, 6));
    const Array label = Array::ids(std::vector<int32_t>(16, 8000));
    cpu::run(CrossEntropy{.logits_TV = logits,
                          .label_T = label,
                          .loss_T = fresh(DType::f32, 16),
                          .T = 16,
                          .V = V,
                          .row_stride = V});
    std::vector<int32_t> id(T);
    for (int64_t t = 0; t < T; ++t) id[t] = int32_t(uniform_below(1, t, 11));
    const Array ids = Array::ids(id);
    cpu::run(EmbeddingBackward{.id_T = ids,
                               .dout_TH = dy,
                               .dtable_VH = fresh(DType::f32, 11 * H),
                               .T = T,
                               .H = H,
                               .V = 11});
    Array& master = out.emplace_back(x);
    cpu::run(AdamW{.master = master,
                   .m = fresh(DType::f32, T * H),
                   .v = fresh(DType::f32, T * H),
                   .grad = dy,
                   .lr = 1e-3f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f,
                   .step = 2});
    return out;
  };
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    const std::vector<Array> one = all(1), three = all(3);
    REQUIRE(one.size() == three.size());
    for (size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i);
      REQUIRE(one[i] == three[i]);
    }
  });
}

TEST_CASE("an instruction set that this machine lacks is refused; every one it has can be chosen") {
  using namespace kernels::cpu;
  const Isa before = isa();
  REQUIRE(isa_supported(Isa::generic));
  for (Isa one : {Isa::generic, Isa::avx2, Isa::avx512})
    if (isa_supported(one)) {
      set_isa(one);
      REQUIRE(isa() == one);
    } else {
      REQUIRE_THROWS_AS(set_isa(one), UserError);
    }
  set_isa(before);
}

}  // namespace kernels_reduce_test
