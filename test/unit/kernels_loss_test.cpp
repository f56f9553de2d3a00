#include <catch2/catch.hpp>

#include "base/error.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels_testing.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

double log_sum_exp(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

std::string name(const char* what, DType dtype) {
  return std::string(what) + " " + std::string(dtype_name(dtype));
}

}  // namespace

TEST_CASE("cross entropy equals its definition; its gradient is softmax - onehot") {
  for (DType dtype : kFloats) {
    Closeness close(name("cross entropy", dtype)),
        close_grad(name("cross entropy gradient", dtype));
    for (int64_t V : {1, 7, 33, 1001, 2048, 2049, 50257}) {
      const int64_t T = 4, stride = V + 3;
      const float scale = 0.125f;
      Array logits = Array::normal(dtype, T * stride, 1, 4);
      for (int64_t i = 0; i < V; ++i)
        logits.set(stride + i,
                   logits[stride + i] + double(i) / double(V) * 40);  // a maximum that rises
      const std::vector<int32_t> labels = {0, int32_t(V - 1), -1, int32_t(V / 2)};
      std::vector<double> want_loss, want_grad(T * stride);
      for (int64_t t = 0; t < T; ++t) {
        const std::vector<double> row = logits.values(t * stride, V);
        const double lse = log_sum_exp(row);
        want_loss.push_back(labels[t] < 0 ? 0 : lse - row[labels[t]]);
        for (int64_t i = 0; labels[t] >= 0 && i < V; ++i)
          want_grad[t * stride + i] = double(scale) * (std::exp(row[i] - lse) - (i == labels[t]));
      }
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, V);
        Array x = logits, loss(DType::f32, T), loss_only(DType::f32, T);
        CrossEntropy a{.logits_TV = x,
                       .loss_T = loss_only,
                       .T = T,
                       .V = V,
                       .row_stride = stride,
                       .grad_scale = scale,
                       .write_grad = false};
        const Array ids = Array::ids(labels);
        a.label_T = ids;
        cpu::run(a);
        REQUIRE(x == logits);
        a.write_grad = true, a.loss_T = loss;
        cpu::run(a);
        REQUIRE(loss == loss_only);
        // The loss is a difference of numbers of up to 60, in fp32 whatever the logits; its sum of
        // V terms is relative to itself.
        REQUIRE(close(loss, want_loss, {.K = 1, .scale = 60}) == "");
        // e^(x - lse): an exponent's rounding error of eps * 60 is a relative one of the result,
        // whose largest is `scale`.
        REQUIRE(close_grad(
                    x, want_grad,
                    {.dtype = dtype, .K = 60 * 60, .scale = double(scale), .sums = DType::f32}) ==
                "");
        REQUIRE((x.margin_untouched() && loss.margin_untouched()));
      });
    }
  }
}

TEST_CASE("cross entropy's gradient equals finite differences of its loss") {
  const int64_t V = 33;
  const Array logits = Array::normal(DType::f32, V, 1, 2), label = Array::ids({5});
  const auto want =
      finite_difference(logits.values(), [](const auto& x) { return log_sum_exp(x) - x[5]; });
  Closeness close("cross entropy, finite differences");
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    Array x = logits, loss(DType::f32, 1);
    cpu::run(CrossEntropy{
        .logits_TV = x, .label_T = label, .loss_T = loss, .T = 1, .V = V, .row_stride = V});
    REQUIRE(close(x, want, {.K = double(V)}) == "");
  });
}

TEST_CASE("cross entropy takes masked logits, and a NaN reaches the loss") {
  const float inf = std::numeric_limits<float>::infinity();
  for (int64_t V : {5, 5000})
    for_each_isa([&](const char* isa) {
      CAPTURE(isa, V);
      std::vector<float> x(V, -inf);  // the first chunk holds nothing else
      x[V - 1] = 1, x[V - 2] = 1;
      const Array label = Array::ids({int32_t(V - 1)});
      Array loss(DType::f32, 1);
      const CrossEntropy a{.logits_TV = {x.data(), V, DType::f32},
                           .label_T = label,
                           .loss_T = loss,
                           .T = 1,
                           .V = V,
                           .row_stride = V};
      cpu::run(a);
      REQUIRE(loss[0] == Approx(std::log(2.0)));
      REQUIRE((x[0] == 0 && x[V - 2] == Approx(0.5) && x[V - 1] == Approx(-0.5)));
      for (float bad : {NAN, inf}) {
        std::fill(x.begin(), x.end(), 0.0f);
        x[V / 2] = bad;
        cpu::run(a);
        REQUIRE(std::isnan(loss[0]));
      }
    });
}

TEST_CASE("cross entropy refuses a label beyond the vocabulary") {
  Array x(DType::f32, 8), loss(DType::f32, 2);
  const Array label = Array::ids({-1, 4});
  REQUIRE_THROWS_WITH(
      cpu::run(CrossEntropy{
          .logits_TV = x, .label_T = label, .loss_T = loss, .T = 2, .V = 4, .row_stride = 4}),
      Catch::Contains("label[1] = 4") && Catch::Contains("4"));
}

TEST_CASE("embedding looks up rows, and its backward adds them up in the order of the tokens") {
  const int64_t T = 300, V = 17, P = 8;
  std::vector<int32_t> id(T), position(T);
  for (int64_t t = 0; t < T; ++t)
    id[t] = int32_t(uniform_below(3, t, V)), position[t] = int32_t(t % P);
  const Array ids = Array::ids(id), positions = Array::ids(position);
  for (int64_t H : {1, 33, 130, 769}) {
    for (DType table_type : kFloats)
      for (DType type : kFloats) {
        const Array table = Array::normal(table_type, V * H, 1),
                    at = Array::normal(table_type, P * H, 2);
        Array want(type, T * H), want_sum(type, T * H);
        for (int64_t t = 0; t < T; ++t)
          for (int64_t i = 0; i < H; ++i) {
            want.set(t * H + i, table[id[t] * H + i]);
            want_sum.set(t * H + i,
                         double(float(table[id[t] * H + i]) + float(at[position[t] * H + i])));
          }
        for_each_isa([&](const char* isa) {
          CAPTURE(isa, H);
          Array out(type, T * H);
          EmbeddingForward a{.id_T = ids, .table_VH = table, .out_TH = out, .T = T, .H = H, .V = V};
          cpu::run(a);
          REQUIRE(out == want);
          a.position_T = positions, a.position_table_PH = at;
          cpu::run(a);
          REQUIRE(out == want_sum);
        });
      }
    for (DType type : kFloats) {
      const Array dout = Array::normal(type, T * H, 3);
      Array want = Array::normal(DType::f32, V * H, 4);
      const Array before = want;
      for (int64_t t = 0; t < T; ++t)  // the same additions in the same order: equal bit by bit
        for (int64_t i = 0; i < H; ++i)
          want.set(id[t] * H + i, double(float(want[id[t] * H + i]) + float(dout[t * H + i])));
      for_each_isa([&](const char* isa) {
        CAPTURE(isa, H);
        Array dtable = before;
        cpu::run(EmbeddingBackward{
            .id_T = ids, .dout_TH = dout, .dtable_VH = dtable, .T = T, .H = H, .V = V});
        REQUIRE(dtable == want);
      });
    }
  }
}

TEST_CASE("embedding's backward equals finite differences of its forward") {
  const int64_t T = 6, V = 4, H = 3;
  const int32_t id[T] = {2, 0, 2, 3, 2, 0};
  const Array ids = Array::ids({2, 0, 2, 3, 2, 0}), dout = Array::normal(DType::f32, T * H, 1),
              table = Array::normal(DType::f32, V * H, 2);
  const auto want = finite_difference(table.values(), [&](const auto& w) {
    double sum = 0;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < H; ++i) sum += w[id[t] * H + i] * dout[t * H + i];
    return sum;
  });
  Closeness close("embedding backward, finite differences");
  Array dtable(DType::f32, V * H);
  cpu::run(
      EmbeddingBackward{.id_T = ids, .dout_TH = dout, .dtable_VH = dtable, .T = T, .H = H, .V = V});
  REQUIRE(close(dtable, want, {.K = double(T)}) == "");
}

TEST_CASE("embedding refuses an id outside of the vocabulary and names it") {
  Array table(DType::f32, 12), out(DType::f32, 6);
  for (int32_t bad : {4, -1}) {
    const Array ids = Array::ids({0, bad});
    REQUIRE_THROWS_WITH(cpu::run(EmbeddingForward{
                            .id_T = ids, .table_VH = table, .out_TH = out, .T = 2, .H = 3, .V = 4}),
                        Catch::Contains("id[1] = " + std::to_string(bad) + " is not in [0, 4)"));
    REQUIRE_THROWS_WITH(
        cpu::run(EmbeddingBackward{
            .id_T = ids, .dout_TH = out, .dtable_VH = table, .T = 2, .H = 3, .V = 4}),
        Catch::Contains("id[1] = " + std::to_string(bad) + " is not in [0, 4)"));
  }
}
