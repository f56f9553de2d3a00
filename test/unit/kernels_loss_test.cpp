#include <algorithm>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "test/support/kernels_testing.h"

namespace kernels_loss_test {

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

double capped(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }
std::vector<double> capped(std::vector<double> row, double cap) {
  for (double& x : row) x = capped(x, cap);
  return row;
}
double cap_slope(double x, double cap) {
  return cap > 0 ? 1 / (std::cosh(x / cap) * std::cosh(x / cap)) : 1;
}

// No cap; a cap that changes most logits of the tests; and one that hardly changes any.
const float kCaps[] = {0, 6, 50};

// The loss is a difference of numbers of up to 60, in fp32 whatever the logits; its sum of V terms
// is relative to itself. A cap adds tanh's error to both numbers, which is about as large.
Rule loss_rule(float cap) { return {.K = 1, .scale = cap > 0 ? 120.0 : 60.0}; }

std::string name(const char* what, DType dtype) {
  return std::string(what) + " " + std::string(dtype_name(dtype));
}

}  // namespace

TEST_CASE("cross entropy equals its definition; its gradient is softmax - onehot") {
  for (DType dtype : kFloats)
    for (const float cap : kCaps) {
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
          const std::vector<double> raw = logits.values(t * stride, V), row = capped(raw, cap);
          const double lse = log_sum_exp(row);
          want_loss.push_back(labels[t] < 0 ? 0 : lse - row[labels[t]]);
          for (int64_t i = 0; labels[t] >= 0 && i < V; ++i)
            want_grad[t * stride + i] = double(scale) *
                                        (std::exp(row[i] - lse) - (i == labels[t])) *
                                        cap_slope(raw[i], cap);
        }
        for_each_isa([&](const char* isa) {
          CAPTURE(isa, V, cap);
          Array x = logits, loss(DType::f32, T), loss_only(DType::f32, T);
          CrossEntropy a{.logits_TV = x,
                         .loss_T = loss_only,
                         .T = T,
                         .V = V,
                         .row_stride = stride,
                         .grad_scale = scale,
                         .write_grad = false,
                         .logit_cap = cap};
          const Array ids = Array::ids(labels);
          a.label_T = ids;
          cpu::run(a);
          REQUIRE(x == logits);
          a.write_grad = true, a.loss_T = loss;
          cpu::run(a);
          REQUIRE(loss == loss_only);
          REQUIRE(close(loss, want_loss, loss_rule(cap)) == "");
          // e^(x - lse): an exponent's rounding error of eps * 60 is a relative one of the result,
          // whose largest is `scale`.
          REQUIRE(close_grad(
                      x, want_grad,
                      {.dtype = dtype, .K = 60 * 60, .scale = double(scale), .sums = DType::f32}) ==
                  "");
          REQUIRE((x.margin_untouched() && loss.margin_untouched()));
          // A masked token's gradient is exactly zero.
          const std::vector<double> masked = x.values(2 * stride, V);
          REQUIRE(std::ranges::count(masked, 0.0) == V);
          REQUIRE(loss[2] == 0);
        });
      }
    }
}

namespace {

struct SpreadResult {
  Array loss, grad_TV;  // the gradient of all ranks' columns
};

// The loss over the vocabulary of logits_TV, whose columns are spread over P ranks of equal width;
// the last of them end with padding, or have only padding.
SpreadResult spread_over(int64_t P, const Array& logits_TV, int64_t V, const Array& label_T,
                         float scale, float cap = 0) {
  const int64_t T = label_T.size(), width = (V + P + 4) / P;
  const DType dtype = logits_TV.dtype();
  const auto first = [&](int64_t p) { return std::min(V, p * width); };
  const auto columns = [&](int64_t p) { return first(p + 1) - first(p); };
  std::vector<Array> parts;
  std::vector<double> gathered;
  for (int64_t p = 0; p < P; ++p) {
    Array x(dtype, std::vector<double>(size_t(T * width), 1000));  // padding that would show
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < columns(p); ++i)
        x.set(t * width + i, logits_TV[t * V + first(p) + i]);
    const Array before = x;
    Array sums(DType::f32, T * kCrossEntropySums);
    cpu::run(CrossEntropySums{.logits_TV = x,
                              .label_T = label_T,
                              .sums_T3 = sums,
                              .T = T,
                              .V = columns(p),
                              .row_stride = width,
                              .first = first(p),
                              .vocabulary = V,
                              .logit_cap = cap});
    REQUIRE((x == before && sums.margin_untouched()));
    for (double v : sums.values()) gathered.push_back(v);
    parts.push_back(std::move(x));
  }
  const Array sums_PT3(DType::f32, gathered), scale_1(DType::f32, std::vector<double>{scale});
  SpreadResult result{Array(DType::f32, T), Array(dtype, T * V)};
  for (int64_t p = 0; p < P; ++p) {
    Array loss(DType::f32, T), loss_only(DType::f32, T);
    const Array before = parts[p];
    CrossEntropyFromSums a{.logits_TV = parts[p],
                           .label_T = label_T,
                           .sums_PT3 = sums_PT3,
                           .loss_T = loss_only,
                           .P = P,
                           .T = T,
                           .V = columns(p),
                           .row_stride = width,
                           .first = first(p),
                           .vocabulary = V,
                           .grad_scale = scale,
                           .write_grad = false,
                           .logit_cap = cap};
    cpu::run(a);
    REQUIRE(parts[p] == before);
    a.write_grad = true, a.loss_T = loss;
    if (p % 2) a.grad_scale = -1, a.scale_in_memory = scale_1;  // the memory's value counts
    cpu::run(a);
    REQUIRE(loss == loss_only);
    REQUIRE((parts[p].margin_untouched() && loss.margin_untouched()));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < width; ++i)
        if (i < columns(p))
          result.grad_TV.set(t * V + first(p) + i, parts[p][t * width + i]);
        else
          REQUIRE(parts[p][t * width + i] == 0);
    if (p > 0) REQUIRE(loss == result.loss);
    result.loss = std::move(loss);
  }
  return result;
}

}  // namespace

TEST_CASE("cross entropy from the sums of ranks equals its definition and the kernel of one rank") {
  ThreadPool pool(2);
  const ThreadPool::Scope scope(&pool);
  const int64_t T = 5;
  const float scale = 0.125f;
  for (DType dtype : kFloats)
    for (const float cap : kCaps) {
      Closeness close(name("cross entropy from sums", dtype)),
          close_grad(name("cross entropy from sums gradient", dtype));
      for (int64_t V : {1, 7, 33, 2049, 50257}) {
        const std::vector<int32_t> labels = {0, int32_t(V - 1), -1, int32_t(V / 2), int32_t(V / 3)};
        const Array ids = Array::ids(labels);
        Array logits = Array::normal(dtype, T * V, 1, 4);
        for (int64_t i = 0; i < V; ++i)
          logits.set(V + i, logits[V + i] + double(i) / double(V) * 40);  // a maximum that rises
        std::vector<double> want_loss, want_grad(size_t(T * V));
        for (int64_t t = 0; t < T; ++t) {
          const std::vector<double> raw = logits.values(t * V, V), row = capped(raw, cap);
          const double lse = log_sum_exp(row);
          want_loss.push_back(labels[t] < 0 ? 0 : lse - row[labels[t]]);
          for (int64_t i = 0; labels[t] >= 0 && i < V; ++i)
            want_grad[t * V + i] = double(scale) * (std::exp(row[i] - lse) - (i == labels[t])) *
                                   cap_slope(raw[i], cap);
        }
        // The tolerances of the kernel for one rank, above.
        const Rule rule = loss_rule(cap),
                   grad_rule{
                       .dtype = dtype, .K = 60 * 60, .scale = double(scale), .sums = DType::f32};
        for_each_isa([&](const char* isa) {
          CAPTURE(isa, V, cap);
          for (int64_t P : {1, 2, 4}) {
            const SpreadResult r = spread_over(P, logits, V, ids, scale, cap);
            REQUIRE(close(r.loss, want_loss, rule) == "");
            REQUIRE(close_grad(r.grad_TV, want_grad, grad_rule) == "");
            const std::vector<double> masked = r.grad_TV.values(2 * V, V);
            REQUIRE(std::ranges::count(masked, 0.0) == V);
          }
          Array x = logits, loss(DType::f32, T);
          cpu::run(CrossEntropy{.logits_TV = x,
                                .label_T = ids,
                                .loss_T = loss,
                                .T = T,
                                .V = V,
                                .row_stride = V,
                                .grad_scale = scale,
                                .logit_cap = cap});
          const SpreadResult one = spread_over(1, logits, V, ids, scale, cap);
          REQUIRE(close(one.loss, loss.values(), {.K = 1, .scale = 1}) == "");
          REQUIRE(close_grad(one.grad_TV, x.values(), grad_rule) == "");
        });
      }
    }
}

TEST_CASE("cross entropy from sums: the gradient equals finite differences of the loss") {
  const int64_t V = 33;
  const Array logits = Array::normal(DType::f32, V, 1, 2), label = Array::ids({20});
  Closeness close("cross entropy from sums, finite differences");
  for (const float cap : {0.0f, 2.0f}) {
    const auto want = finite_difference(logits.values(), [&](const auto& x) {
      return log_sum_exp(capped(x, cap)) - capped(x[20], cap);
    });
    for_each_isa([&](const char* isa) {
      CAPTURE(isa, cap);
      REQUIRE(close(spread_over(3, logits, V, label, 1, cap).grad_TV, want, {.K = double(V)}) ==
              "");
    });
  }
}

TEST_CASE("cross entropy from sums takes masked logits, and a NaN on one rank reaches every loss") {
  const float inf = std::numeric_limits<float>::infinity();
  const Array label = Array::ids({3});
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    const auto loss_of = [&](std::vector<float> x) {  // four columns on either rank
      std::vector<float> sums(2 * kCrossEntropySums);
      Array loss(DType::f32, 1);
      for (int64_t p = 0; p < 2; ++p)
        cpu::run(CrossEntropySums{
            .logits_TV = {x.data() + p * 4, 4, DType::f32},
            .label_T = label,
            .sums_T3 = {sums.data() + p * kCrossEntropySums, kCrossEntropySums, DType::f32},
            .T = 1,
            .V = 4,
            .row_stride = 4,
            .first = p * 4,
            .vocabulary = 8});
      cpu::run(CrossEntropyFromSums{.logits_TV = {x.data(), 4, DType::f32},
                                    .label_T = label,
                                    .sums_PT3 = {sums.data(), 2 * kCrossEntropySums, DType::f32},
                                    .loss_T = loss,
                                    .P = 2,
                                    .T = 1,
                                    .V = 4,
                                    .row_stride = 4,
                                    .first = 0,
                                    .vocabulary = 8});
      return loss[0];
    };
    REQUIRE(loss_of({-inf, -inf, 1, 1, -inf, -inf, -inf, -inf}) == Approx(std::log(2.0)));
    REQUIRE(loss_of({0, 0, 0, 0, 0, 0, 0, 0}) == Approx(std::log(8.0)));
    REQUIRE(std::isnan(loss_of({0, 0, 0, 0, 0, NAN, 0, 0})));
    REQUIRE(std::isnan(loss_of({0, 0, 0, 0, 0, inf, 0, 0})));
  });
}

TEST_CASE("cross entropy's gradient equals finite differences of its loss") {
  const int64_t V = 33;
  const Array logits = Array::normal(DType::f32, V, 1, 2), label = Array::ids({5});
  Closeness close("cross entropy, finite differences");
  for (const float cap : {0.0f, 2.0f}) {
    const auto want = finite_difference(logits.values(), [&](const auto& x) {
      return log_sum_exp(capped(x, cap)) - capped(x[5], cap);
    });
    for_each_isa([&](const char* isa) {
      CAPTURE(isa, cap);
      Array x = logits, loss(DType::f32, 1);
      cpu::run(CrossEntropy{.logits_TV = x,
                            .label_T = label,
                            .loss_T = loss,
                            .T = 1,
                            .V = V,
                            .row_stride = V,
                            .logit_cap = cap});
      REQUIRE(close(x, want, {.K = double(V)}) == "");
    });
  }
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
  Array sums(DType::f32, 6);
  CrossEntropySums a{.logits_TV = x,
                     .label_T = label,
                     .sums_T3 = sums,
                     .T = 2,
                     .V = 4,
                     .row_stride = 4,
                     .first = 4,
                     .vocabulary = 8};
  REQUIRE_NOTHROW(cpu::run(a));  // another rank's label
  a.first = 0, a.vocabulary = 4;
  REQUIRE_THROWS_WITH(cpu::run(a), Catch::Contains("label[1] = 4"));
  a.logit_cap = -1;
  REQUIRE_THROWS_WITH(cpu::run(a), Catch::Contains("capped at -1"));
  a.logit_cap = 0;
  a.first = 5, a.vocabulary = 8;  // the columns would end beyond it
  REQUIRE_THROWS_AS(cpu::run(a), BugError);
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
        if (!can_meet(table_type, type)) continue;
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

TEST_CASE("embedding multiplies rows of tokens alone, and their gradients") {
  const int64_t T = 40, V = 5, P = 4, H = 130;
  const float scale = 11.3125f;
  std::vector<int32_t> id(T), position(T);
  for (int64_t t = 0; t < T; ++t) id[t] = int32_t(t * t % V), position[t] = int32_t(t % P);
  const Array ids = Array::ids(id), positions = Array::ids(position);
  for (DType type : kFloats) {
    const Array table = Array::normal(type, V * H, 1), at = Array::normal(type, P * H, 2),
                dout = Array::normal(type, T * H, 3);
    std::vector<double> want, want_sum, want_grad(size_t(V * H));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < H; ++i) {
        want.push_back(scale * table[id[t] * H + i]);
        want_sum.push_back(want.back() + at[position[t] * H + i]);
        want_grad[size_t(id[t] * H + i)] += scale * dout[t * H + i];
      }
    Closeness close(name("scaled embedding", type));
    for_each_isa([&](const char* isa) {
      CAPTURE(isa);
      Array out(type, T * H), dtable(DType::f32, V * H);
      EmbeddingForward a{
          .id_T = ids, .table_VH = table, .out_TH = out, .T = T, .H = H, .V = V, .scale = scale};
      cpu::run(a);
      REQUIRE(close(out, want, {.dtype = type, .K = 0}) == "");  // one product
      a.position_T = positions, a.position_table_PH = at;
      cpu::run(a);
      // A product and a sum in fp32; the product is at most some 50.
      REQUIRE(close(out, want_sum, {.dtype = type, .K = 2, .scale = 50, .sums = DType::f32}) == "");
      cpu::run(EmbeddingBackward{.id_T = ids,
                                 .dout_TH = dout,
                                 .dtable_VH = dtable,
                                 .T = T,
                                 .H = H,
                                 .V = V,
                                 .scale = scale});
      REQUIRE(close(dtable, want_grad, {.K = double(T), .scale = 50}) == "");
    });
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

TEST_CASE("embedding: the shards of a vocabulary add up to the whole") {
  const int64_t T = 200, V = 13, H = 33, P = 4, rows = 4;  // the last shard ends with padding
  std::vector<int32_t> id(T);
  for (int64_t t = 0; t < T; ++t) id[t] = int32_t(uniform_below(3, t, V));
  const Array ids = Array::ids(id);
  for (DType type : kFloats) {
    const Array table = Array::normal(type, P * rows * H, 1), dout = Array::normal(type, T * H, 2);
    const Array before = Array::normal(DType::f32, P * rows * H, 3);
    Array want(type, T * H), want_grad = before;
    cpu::run(EmbeddingForward{
        .id_T = ids, .table_VH = table, .out_TH = want, .T = T, .H = H, .V = P * rows});
    cpu::run(EmbeddingBackward{
        .id_T = ids, .dout_TH = dout, .dtable_VH = want_grad, .T = T, .H = H, .V = P * rows});
    for_each_isa([&](const char* isa) {
      CAPTURE(isa);
      std::vector<double> sum(size_t(T * H)), grad;
      for (int64_t p = 0; p < P; ++p) {
        const Array shard(type, table.values(p * rows * H, rows * H));
        Array dshard(DType::f32, before.values(p * rows * H, rows * H));
        Array out = Array::normal(type, T * H, 9);
        cpu::run(EmbeddingForward{.id_T = ids,
                                  .table_VH = shard,
                                  .out_TH = out,
                                  .T = T,
                                  .H = H,
                                  .V = rows,
                                  .first_row = p * rows,
                                  .vocabulary = P * rows});
        cpu::run(EmbeddingBackward{.id_T = ids,
                                   .dout_TH = dout,
                                   .dtable_VH = dshard,
                                   .T = T,
                                   .H = H,
                                   .V = rows,
                                   .first_row = p * rows,
                                   .vocabulary = P * rows});
        for (int64_t i = 0; i < T * H; ++i) sum[size_t(i)] += out[i];
        for (double v : dshard.values()) grad.push_back(v);
        REQUIRE((out.margin_untouched() && dshard.margin_untouched()));
      }
      REQUIRE(Array(type, sum) == want);
      REQUIRE(Array(DType::f32, grad) == want_grad);
    });
  }
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
  const Array ids = Array::ids({0, 6}), position = Array::ids({0, 0});
  EmbeddingForward shard{.id_T = ids,
                         .table_VH = table,
                         .out_TH = out,
                         .T = 2,
                         .H = 3,
                         .V = 4,
                         .first_row = 4,
                         .vocabulary = 8};
  REQUIRE_NOTHROW(cpu::run(shard));
  shard.position_T = position, shard.position_table_PH = table;
  REQUIRE_THROWS_AS(cpu::run(shard), BugError);
  shard.position_table_PH = {}, shard.vocabulary = 6;  // the shard would end beyond it
  REQUIRE_THROWS_AS(cpu::run(shard), BugError);
}

}  // namespace kernels_loss_test
