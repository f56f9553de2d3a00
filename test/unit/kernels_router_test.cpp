// The router against a float64 reference that is written from the definitions, and its gradients
// against finite differences of that reference.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/router.h"
#include "test/support/router_cases.h"

namespace kernels_router_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

using Vector = std::vector<double>;

struct Coefficients {
  double batch = 0, sample = 0, global = 0, z = 0;
};

struct Reference {
  std::vector<int32_t> expert;
  Vector weight, log_sum, score_sum, sums;
  double balance = 0, z = 0;
};

// Returns the positions of the `n` largest values; of equal ones the first.
std::vector<int64_t> best(const Vector& values, int64_t n) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t i, int64_t j) { return values[i] > values[j]; });
  order.resize(size_t(n));
  return order;
}

std::vector<int64_t> choose(const RouterCase& c, const Vector& logits, const Vector& score,
                            const Vector& bias) {
  const int64_t size = c.E / c.form.groups;
  Vector value(size_t(c.E)), group;
  for (int64_t e = 0; e < c.E; ++e)
    value[e] = (c.form.over_chosen ? logits[e] : score[e]) + (c.biased ? bias[e] : 0);
  for (int64_t g = 0; g < c.form.groups; ++g) {
    const Vector own(value.begin() + g * size, value.begin() + (g + 1) * size);
    double sum = 0;
    const int64_t ranked = c.form.group_experts > 0
                               ? c.form.group_experts
                               : std::max<int64_t>(1, c.K / c.form.best_groups);
    for (int64_t e : best(own, std::min(size, ranked))) sum += own[e];
    group.push_back(sum);
  }
  std::vector<bool> open(size_t(c.form.groups));
  for (int64_t g : best(group, c.form.best_groups)) open[g] = true;
  for (int64_t e = 0; e < c.E; ++e)
    if (!open[e / size]) value[e] = -INFINITY;
  return best(value, c.K);
}

Reference reference(const RouterCase& c, const Vector& logits, const RouterInputs& in,
                    const Coefficients& coeff = {}, const Vector& fraction = {}) {
  const bool softmax = c.form.score == RouterScore::softmax;
  const int64_t S = router_sums(c.E);
  Reference r;
  r.sums.resize(size_t(c.B * S));
  for (int64_t t = 0; t < c.T; ++t) {
    double* const row = r.sums.data() + c.sample(t) * S;
    if (c.padded && in.valid_T.span().as<int32_t>()[t] == 0) {
      r.expert.insert(r.expert.end(), size_t(c.K), -1);
      r.weight.insert(r.weight.end(), size_t(c.K), 0.0);
      r.log_sum.push_back(0), r.score_sum.push_back(0);
      continue;
    }
    const Vector x(logits.begin() + t * c.E, logits.begin() + (t + 1) * c.E);
    Vector score;
    const double max = *std::ranges::max_element(x);
    double sum = 0, all = 0;
    for (double v : x) sum += std::exp(v - max);
    const double log_sum = max + std::log(sum);
    for (double v : x) score.push_back(softmax ? std::exp(v - log_sum) : 1 / (1 + std::exp(-v)));
    for (double s : score) all += s;
    double chosen = 0, weights = 0;
    auto experts = c.given ? std::vector<int64_t>() : choose(c, x, score, in.bias_E.values());
    for (int64_t k = 0; c.given && k < c.K; ++k)
      experts.push_back(in.choice_TK.span().as<int32_t>()[t * c.K + k]);
    for (int64_t e : experts) chosen += std::exp(x[e] - max), weights += score[e];
    for (int64_t e : experts) {
      r.expert.push_back(int32_t(e));
      r.weight.push_back(c.form.scale * (c.form.over_chosen ? std::exp(x[e] - max) / chosen
                                         : c.form.normalize ? score[e] / weights
                                                            : score[e]));
      ++row[e];
    }
    for (int64_t e = 0; e < c.E; ++e) row[c.E + e] += score[e] / all;
    row[2 * c.E] += log_sum * log_sum;
    ++row[2 * c.E + 1];
    r.log_sum.push_back(log_sum), r.score_sum.push_back(all);
  }
  double tokens = 0;
  for (int64_t b = 0; b < c.B; ++b) tokens += r.sums[b * S + 2 * c.E + 1];
  for (int64_t b = 0; b < c.B; ++b) {
    r.z += coeff.z * r.sums[b * S + 2 * c.E] / tokens;
    for (int64_t e = 0; e < c.E; ++e) {
      const double own = r.sums[b * S + 2 * c.E + 1], P = r.sums[b * S + c.E + e];
      double count = 0;
      for (int64_t s = 0; s < c.B; ++s) count += r.sums[s * S + e];
      r.balance += double(c.E) * coeff.sample / double(c.B) * r.sums[b * S + e] /
                   (own * double(c.K)) * P / own;
      r.balance += double(c.E) * coeff.batch * count / (tokens * double(c.K)) * P / tokens;
      if (coeff.global != 0) r.balance += double(c.E) * coeff.global * fraction[e] * P / tokens;
    }
  }
  return r;
}

struct Routed {
  Array expert, weight, log_sum, score_sum;
  explicit Routed(const RouterCase& c)
      : expert(DType::i32, c.T * c.K),
        weight(DType::f32, c.T * c.K),
        log_sum(DType::f32, c.T),
        score_sum(DType::f32, c.T) {}
};
void route(const RouterCase& c, const RouterInputs& in, Routed& to) {
  cpu::run(RouteTokens{.logits_TE = in.logits_TE,
                       .bias_E = c.biased ? ConstSpan(in.bias_E) : ConstSpan{},
                       .valid_T = c.padded ? ConstSpan(in.valid_T) : ConstSpan{},
                       .choice_TK = c.given ? ConstSpan(in.choice_TK) : ConstSpan{},
                       .expert_TK = to.expert,
                       .weight_TK = to.weight,
                       .log_sum_T = to.log_sum,
                       .score_sum_T = to.score_sum,
                       .T = c.T,
                       .E = c.E,
                       .K = c.K,
                       .form = c.form});
}

std::vector<int32_t> numbers(const Array& a) {
  const auto* p = a.span().as<int32_t>();
  return {p, p + a.size()};
}

// The relative error of an exponential, whose argument is rounded at its own size.
Rule weight_rule(const RouterCase& c) { return {.K = double(c.E), .scale = 4.0 * c.form.scale}; }

}  // namespace

TEST_CASE("a router chooses and weighs as its definition says, under every instruction set") {
  Closeness close("router");
  for (const RouterCase& c : router_cases())
    for (DType type : kFloats)
      for_each_isa([&](const char* isa) {
        CAPTURE(c.name, type, isa);
        const RouterInputs in(c, type);
        const Reference want = reference(c, in.logits_TE.values(), in);
        Routed got(c);
        route(c, in, got);
        REQUIRE(numbers(got.expert) == want.expert);
        REQUIRE(close(got.weight, want.weight, weight_rule(c)) == "");
        REQUIRE(close(got.log_sum, want.log_sum, {.K = double(c.E), .scale = 4}) == "");
        // Sigmoids have one sign, too: their sum is about E / 2 at its end.
        REQUIRE(close(got.score_sum, want.score_sum,
                      {.K = double(c.E), .scale = 4 + double(c.E) / 4}) == "");
        Array sums(DType::f32, c.B * router_sums(c.E));
        cpu::run(RouterSums{.logits_TE = in.logits_TE,
                            .expert_TK = got.expert,
                            .log_sum_T = got.log_sum,
                            .score_sum_T = got.score_sum,
                            .sample_T = c.apart ? ConstSpan(in.sample_T) : ConstSpan{},
                            .sums_BS = sums,
                            .T = c.T,
                            .E = c.E,
                            .K = c.K,
                            .B = c.B,
                            .score = c.form.score});
        // Squares have one sign, so that additions round at the whole sum: about 37 T at its end,
        // half of it on average.
        REQUIRE(close(sums, want.sums, {.K = double(c.T), .scale = 19.0 * double(c.T)}) == "");
      });
}

TEST_CASE("gradients of weights, balance and z-loss are the slopes of the definition") {
  Closeness close("router's gradient");
  const Coefficients coeff{.batch = 0.7, .sample = 0.4, .global = 0.9, .z = 0.05};
  for (const RouterCase& c : router_cases())
    for_each_isa([&](const char* isa) {
      CAPTURE(c.name, isa);
      const RouterInputs in(c, DType::f32);
      const Array fraction = [&] {
        Vector f;
        for (int64_t e = 0; e < c.E; ++e) f.push_back(double(1 + e % 3) / double(2 * c.E));
        return Array(DType::f32, f);
      }();
      Routed routed(c);
      route(c, in, routed);
      Array sums(DType::f32, c.B * router_sums(c.E)), loss(DType::f64, Vector{1, 2}),
          grad(DType::f32, c.B * (c.E + 1)), dlogits(DType::f32, c.T * c.E);
      cpu::run(RouterSums{.logits_TE = in.logits_TE,
                          .expert_TK = routed.expert,
                          .log_sum_T = routed.log_sum,
                          .score_sum_T = routed.score_sum,
                          .sample_T = c.apart ? ConstSpan(in.sample_T) : ConstSpan{},
                          .sums_BS = sums,
                          .T = c.T,
                          .E = c.E,
                          .K = c.K,
                          .B = c.B,
                          .score = c.form.score});
      cpu::run(RouterLosses{.sums_BS = sums,
                            .fraction_E = fraction,
                            .batch_coeff = float(coeff.batch),
                            .sample_coeff = float(coeff.sample),
                            .global_coeff = float(coeff.global),
                            .z_coeff = float(coeff.z),
                            .grad_scale = 3,
                            .loss_2 = loss,
                            .grad_BG = grad,
                            .B = c.B,
                            .E = c.E,
                            .K = c.K});
      cpu::run(RouteTokensGrad{.logits_TE = in.logits_TE,
                               .expert_TK = routed.expert,
                               .log_sum_T = routed.log_sum,
                               .score_sum_T = routed.score_sum,
                               .dweight_TK = in.dweight_TK,
                               .grad_BG = grad,
                               .sample_T = c.apart ? ConstSpan(in.sample_T) : ConstSpan{},
                               .dlogits_TE = dlogits,
                               .T = c.T,
                               .E = c.E,
                               .K = c.K,
                               .B = c.B,
                               .form = c.form});
      Vector logits = in.logits_TE.values();
      const auto at = [&] { return reference(c, logits, in, coeff, fraction.values()); };
      const Reference middle = at();
      CHECK(loss[0] - 1 == Approx(middle.balance).epsilon(1e-5));
      CHECK(loss[1] - 2 == Approx(middle.z).epsilon(1e-5));
      // The counts are data: the balance's slope is taken at the counts of the middle.
      const auto objective = [&] {
        const Reference r = at();
        REQUIRE(r.expert == middle.expert);  // no tie is near
        double sum = 3 * (r.balance + r.z);
        for (size_t i = 0; i < r.weight.size(); ++i) sum += r.weight[i] * in.dweight_TK[i];
        return sum;
      };
      Vector slope(logits.size());
      for (size_t i = 0; i < logits.size(); i += 1 + logits.size() / 300) {
        constexpr double kStep = 1e-5;
        const double x = logits[i];
        logits[i] = x + kStep;
        const double above = objective();
        logits[i] = x - kStep;
        slope[i] = (above - objective()) / (2 * kStep);
        logits[i] = x;
        CAPTURE(i);
        // The difference of two fp64 sums of order 100 over 2e-5, and fp32 terms of order `scale`.
        CHECK(dlogits[int64_t(i)] ==
              Approx(slope[i]).epsilon(1e-5).margin(2e-6 * std::max(1.0, double(c.form.scale))));
      }
    });
}

TEST_CASE("of equal logits the lower expert wins; padding has neither choice nor gradient") {
  RouterCase c{.name = "equal", .T = 2, .E = 6, .K = 3, .padded = true};
  RouterInputs in(c, DType::f32);
  in.logits_TE = Array(DType::f32, Vector{1, 1, 0, 1, 1, 1, 9, 8, 7, 6, 5, 4});
  in.valid_T = Array::ids({1, 0});
  for_each_isa([&](const char* isa) {
    CAPTURE(isa);
    Routed got(c);
    route(c, in, got);
    CHECK(numbers(got.expert) == std::vector<int32_t>{0, 1, 3, -1, -1, -1});
    CHECK(got.weight[3] == 0);
    Array dlogits(DType::f32, 12);
    cpu::run(RouteTokensGrad{.logits_TE = in.logits_TE,
                             .expert_TK = got.expert,
                             .log_sum_T = got.log_sum,
                             .score_sum_T = got.score_sum,
                             .dweight_TK = in.dweight_TK,
                             .dlogits_TE = dlogits,
                             .T = 2,
                             .E = 6,
                             .K = 3,
                             .B = 1});
    CHECK(dlogits[0] != 0);
    for (int64_t i = 6; i < 12; ++i) CHECK(dlogits[i] == 0);
  });
}

TEST_CASE("a logit that is NaN makes the weights and the gradient NaN") {
  RouterCase c{.name = "nan", .T = 1, .E = 4, .K = 2};
  RouterInputs in(c, DType::f32);
  in.logits_TE.set(2, std::nan(""));
  Routed got(c);
  route(c, in, got);
  CHECK(std::isnan(got.weight[0]));
  for (int32_t e : numbers(got.expert)) CHECK((e >= 0 && e < 4));
}

TEST_CASE("a bias rises for experts with less than the mean, and falls for those with more") {
  const Array count(DType::f32, Vector{4, 0, 2, 2});
  Array bias(DType::f32, Vector{0.5, 0, 0, -1});
  cpu::run(UpdateRouterBias{.count_E = count, .bias_E = bias, .E = 4, .rate = 0.25f});
  CHECK(bias.values() == Vector{0.25, 0.25, 0, -1});
}

TEST_CASE("capacity drops the lightest choices, or the last ones") {
  const std::vector<int32_t> expert{0, 1, 0, 1, 0, -1, 0, 1};
  const Array weight(DType::f32, Vector{0.2, 0.9, 0.7, 0.1, 0.2, 0.9, 0.6, 0.3});
  const auto drop = [&](int64_t capacity, bool by_weight) {
    Array kept = Array::ids(expert), dropped(DType::f32, Vector{5, 5});
    cpu::run(DropChoices{.expert_TK = kept,
                         .weight_TK = by_weight ? ConstSpan(weight) : ConstSpan{},
                         .dropped_E = dropped,
                         .T = 4,
                         .K = 2,
                         .E = 2,
                         .capacity = capacity});
    CHECK(dropped.values() == Vector{5 + double(std::max<int64_t>(0, 4 - capacity)),
                                     5 + double(std::max<int64_t>(0, 3 - capacity))});
    return numbers(kept);
  };
  CHECK(drop(3, true) == std::vector<int32_t>{0, 1, 0, 1, -1, -1, 0, 1});
  CHECK(drop(2, true) == std::vector<int32_t>{-1, 1, 0, -1, -1, -1, 0, 1});
  CHECK(drop(2, false) == std::vector<int32_t>{0, 1, 0, 1, -1, -1, -1, -1});
  CHECK(drop(0, true) == std::vector<int32_t>(8, -1));
  CHECK(drop(9, true) == expert);
}

}  // namespace kernels_router_test
