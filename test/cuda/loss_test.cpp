#include <cmath>

#include "kernels/cross_entropy.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

struct Sizes {
  int64_t T, V, stride;
  bool short_end = false;  // the last row has no padding
};

std::vector<Sizes> all_sizes() {
  return {{1, 1, 1},
          {3, 7, 7},
          {5, 50, 64},
          {5, 1003, 1008, true},
          {3, 9001, 9008},
          {4, 8192, 8192},
          {2, 20000, 20001},
          {size_of_test(2, 8), size_of_test(33000, 152000), size_of_test(33000, 152064)}};
}

std::vector<std::pair<Sizes, float>> sizes_and_caps() {
  std::vector<std::pair<Sizes, float>> all;
  for (const Sizes& s : all_sizes())
    for (const float cap : {0.0f, 30.0f}) all.emplace_back(s, cap);
  return all;
}

Array logits_of(const Sizes& s, DType type) {
  const int64_t count = (s.T - 1) * s.stride + (s.short_end ? s.V : s.stride);
  Array x = Array::normal(type, count, 1, 4);
  for (int64_t i = 0; i < count; ++i)
    if (i % s.stride >= s.V) x.set(i, 1000);  // padding takes no part
  if (s.V > 6) x.set(2, -INFINITY), x.set(3, 80);
  return x;
}
Array labels_of(const Sizes& s) {
  std::vector<int32_t> labels;
  for (int64_t t = 0; t < s.T; ++t)
    labels.push_back(t == 1 ? -1 : int32_t((t * 977 + s.V - 1) % s.V));
  return Array::ids(labels);
}
Rule loss_rule(const Sizes& s) { return {.K = double(s.V), .scale = 4}; }
// A probability of at most 1 times the scale, with the relative error of its exponent.
Rule gradient_rule(const Sizes& s, DType type) {
  return {.dtype = type, .K = double(s.V), .scale = 0.25, .sums = DType::f32};
}

}  // namespace

TEST_CASE("cross entropy: loss, and gradient in place of the logits, equal the CPU's") {
  for (DType type : kFloats) {
    Closeness close("cross entropy " + std::string(dtype_name(type)));
    for (const Sizes& s : all_sizes())
      for_each_way([&](int64_t offset) {
        for (const auto& [gradient, cap] :
             {std::pair{true, 0.0f}, {false, 0.0f}, {true, 30.0f}, {false, 5.0f}}) {
          CAPTURE(s.T, s.V, s.stride, gradient, cap);
          Mirror x(logits_of(s, type), offset), label(labels_of(s)), loss(Array(DType::f32, s.T));
          CrossEntropy a{.logits_TV = x.host(),
                         .label_T = label.host(),
                         .loss_T = loss.host(),
                         .T = s.T,
                         .V = s.V,
                         .row_stride = s.stride,
                         .grad_scale = 0.25f,
                         .write_grad = gradient,
                         .logit_cap = cap};
          cpu::run(a);
          a.logits_TV = x.device(), a.label_T = label.device(), a.loss_T = loss.device();
          cuda::run(a, device_stream());
          REQUIRE(loss.compare(close, loss_rule(s)) == "");
          if (gradient)
            REQUIRE(x.compare(close, gradient_rule(s, type)) == "");
          else
            REQUIRE(x.same());
        }
      });
  }
}

TEST_CASE("cross entropy over a vocabulary in shards equals the CPU's") {
  for (DType type : kFloats) {
    Closeness close("cross entropy shards " + std::string(dtype_name(type)));
    for (const auto& [s, cap] : sizes_and_caps())
      for_each_way([&, s = s, cap = cap](int64_t offset) {
        CAPTURE(s.T, s.V, s.stride, cap);
        const int64_t P = 3, vocabulary = 2 * s.V;  // the last rank has only padding
        Array all_labels = labels_of(s);
        Mirror label(all_labels), loss(Array(DType::f32, s.T)),
            scale_1(Array(DType::f32, std::vector<double>{0.25}));
        Mirror sums(Array(DType::f32, P * s.T * kCrossEntropySums));
        std::vector<std::unique_ptr<Mirror>> x;
        const int64_t part = s.T * kCrossEntropySums;
        for (int64_t p = 0; p < P; ++p) {
          x.push_back(std::make_unique<Mirror>(logits_of(s, type), offset));
          const int64_t first = std::min(p * s.V, vocabulary), V = p == 2 ? 0 : s.V;
          CrossEntropySums a{.logits_TV = x[size_t(p)]->host(),
                             .label_T = label.host(),
                             .T = s.T,
                             .V = V,
                             .row_stride = s.stride,
                             .first = first,
                             .vocabulary = vocabulary,
                             .logit_cap = cap};
          a.sums_T3 = {sums.host().span().as<float>() + p * part, part, DType::f32};
          cpu::run(a);
          a.logits_TV = x[size_t(p)]->device(), a.label_T = label.device();
          a.sums_T3 = {sums.device().as<float>() + p * part, part, DType::f32};
          cuda::run(a, device_stream());
        }
        if (cap == 0) REQUIRE(sums.result()[0] == sums.host()[0]);  // the maximum of a row
        const Array got = sums.result();
        for (int64_t i = 0; i < got.size(); ++i)
          REQUIRE((got[i] == sums.host()[i] ||
                   std::abs(got[i] - sums.host()[i]) <= 1e-5 * std::abs(got[i])));
        for (int64_t p = 0; p < P; ++p) {
          const int64_t first = std::min(p * s.V, vocabulary), V = p == 2 ? 0 : s.V;
          CrossEntropyFromSums a{.logits_TV = x[size_t(p)]->host(),
                                 .label_T = label.host(),
                                 .sums_PT3 = sums.host(),
                                 .loss_T = loss.host(),
                                 .P = P,
                                 .T = s.T,
                                 .V = V,
                                 .row_stride = s.stride,
                                 .first = first,
                                 .vocabulary = vocabulary,
                                 .grad_scale = 0.25f,
                                 .logit_cap = cap};
          cpu::run(a);
          if (p == 1) a.grad_scale = -1, a.scale_in_memory = scale_1.device();
          a.logits_TV = x[size_t(p)]->device(), a.label_T = label.device(),
          a.sums_PT3 = sums.device(), a.loss_T = loss.device();
          cuda::run(a, device_stream());
          REQUIRE(loss.compare(close, loss_rule(s)) == "");
          REQUIRE(x[size_t(p)]->compare(close, gradient_rule(s, type)) == "");
        }
      });
  }
}

TEST_CASE("a label beyond the vocabulary makes the loss NaN") {
  Mirror x(Array::normal(DType::f32, 16, 1)), label(Array::ids({3, 8})), loss(Array(DType::f32, 2));
  cuda::run(CrossEntropy{.logits_TV = x.device(),
                         .label_T = label.device(),
                         .loss_T = loss.device(),
                         .T = 2,
                         .V = 8,
                         .row_stride = 8},
            device_stream());
  REQUIRE(std::isfinite(loss.result()[0]));
  REQUIRE(std::isnan(loss.result()[1]));
}
