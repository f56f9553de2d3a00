#include "kernels/router.h"

#include "mirror.h"
#include "test/support/router_cases.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

TEST_CASE("the router's choices, sums, losses and gradients equal the CPU's") {
  Closeness close("router");
  for (const RouterCase& c : router_cases())
    for (DType type : kFloats)
      for_each_order([&] {
        CAPTURE(c.name, type);
        const RouterInputs in(c, type);
        Mirror logits(in.logits_TE), bias(in.bias_E), valid(in.valid_T), choice(in.choice_TK),
            dweight(in.dweight_TK), sample(in.sample_T), expert(Array(DType::i32, c.T * c.K)),
            weight(Array(DType::f32, c.T * c.K)), log_sum(Array(DType::f32, c.T)),
            score_sum(Array(DType::f32, c.T)), sums(Array(DType::f32, c.B * router_sums(c.E))),
            fraction(Array(DType::f32, c.E)), loss(Array(DType::f64, std::vector<double>{1, 2})),
            grad(Array(DType::f32, c.B * (c.E + 1))), dlogits(Array(type, c.T * c.E));
        const auto run = [&](auto of, const auto& enqueue) {
          enqueue(RouteTokens{.logits_TE = of(logits),
                              .bias_E = c.biased ? ConstSpan(of(bias)) : ConstSpan{},
                              .valid_T = c.padded ? ConstSpan(of(valid)) : ConstSpan{},
                              .choice_TK = c.given ? ConstSpan(of(choice)) : ConstSpan{},
                              .expert_TK = of(expert),
                              .weight_TK = of(weight),
                              .log_sum_T = of(log_sum),
                              .score_sum_T = of(score_sum),
                              .T = c.T,
                              .E = c.E,
                              .K = c.K,
                              .form = c.form});
          enqueue(RouterSums{.logits_TE = of(logits),
                             .expert_TK = of(expert),
                             .log_sum_T = of(log_sum),
                             .score_sum_T = of(score_sum),
                             .sample_T = c.apart ? ConstSpan(of(sample)) : ConstSpan{},
                             .sums_BS = of(sums),
                             .T = c.T,
                             .E = c.E,
                             .K = c.K,
                             .B = c.B,
                             .score = c.form.score});
          enqueue(RouterLosses{.sums_BS = of(sums),
                               .fraction_E = of(fraction),
                               .batch_coeff = 0.7f,
                               .sample_coeff = 0.4f,
                               .global_coeff = 0.3f,
                               .z_coeff = 0.05f,
                               .grad_scale = 3,
                               .loss_2 = of(loss),
                               .grad_BG = of(grad),
                               .B = c.B,
                               .E = c.E,
                               .K = c.K});
          enqueue(RouteTokensGrad{.logits_TE = of(logits),
                                  .expert_TK = of(expert),
                                  .log_sum_T = of(log_sum),
                                  .score_sum_T = of(score_sum),
                                  .dweight_TK = of(dweight),
                                  .grad_BG = of(grad),
                                  .sample_T = c.apart ? ConstSpan(of(sample)) : ConstSpan{},
                                  .dlogits_TE = of(dlogits),
                                  .T = c.T,
                                  .E = c.E,
                                  .K = c.K,
                                  .B = c.B,
                                  .form = c.form});
        };
        run([](Mirror& m) { return m.host().span(); }, [](const auto& a) { cpu::run(a); });
        run([](Mirror& m) { return m.device(); },
            [](const auto& a) { cuda::run(a, device_stream()); });
        const double E = double(c.E), scale = c.form.scale;
        REQUIRE(expert.same());
        REQUIRE(weight.compare(close, {.K = E, .scale = 4 * scale}) == "");
        REQUIRE(log_sum.compare(close, {.K = E, .scale = 4}) == "");
        // Sigmoids have one sign, too: their sum is about E / 2 at its end.
        REQUIRE(score_sum.compare(close, {.K = E, .scale = 4 + E / 4}) == "");
        // Squares have one sign, so that additions round at the whole sum: about 37 T at its end,
        // half of it on average.
        REQUIRE(sums.compare(close, {.K = double(c.T), .scale = 19.0 * double(c.T)}) == "");
        REQUIRE(loss.compare(close, {.K = E, .scale = 4, .sums = DType::f32}) == "");
        REQUIRE(grad.compare(close, {.K = double(c.T), .scale = 4}) == "");
        REQUIRE(dlogits.compare(
                    close, {.dtype = type, .K = E, .scale = 4 * scale, .sums = DType::f32}) == "");
      });
}

TEST_CASE("biases and the choices that capacity drops are the CPU's, number by number") {
  for (auto [T, K, E, capacity] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 0},
                                   {40, 2, 4, 11},
                                   {300, 3, 5, 100},
                                   {size_of_test(160, 4096), 8, 16, size_of_test(70, 2000)}})
    for (bool by_weight : {false, true})
      for_each_order([&] {
        CAPTURE(T, K, E, capacity, by_weight);
        std::vector<int32_t> ids;
        std::vector<double> weights;
        for (int64_t i = 0; i < T * K; ++i) {
          ids.push_back(int32_t(uniform_below(7, i, E + 1)) - 1);
          weights.push_back(double(uniform_below(8, i, 20)) / 16);  // many weights are equal
        }
        Mirror expert(Array::ids(ids)), weight(Array(DType::f32, weights)),
            dropped(Array(DType::f32, std::vector<double>(size_t(E), 2)));
        DropChoices drop{.expert_TK = expert.host(),
                         .dropped_E = dropped.host(),
                         .T = T,
                         .K = K,
                         .E = E,
                         .capacity = capacity};
        if (by_weight) drop.weight_TK = weight.host();
        cpu::run(drop);
        drop.expert_TK = expert.device(), drop.dropped_E = dropped.device();
        if (by_weight) drop.weight_TK = weight.device();
        cuda::run(drop, device_stream());
        REQUIRE(expert.same());
        REQUIRE(dropped.same());
        Mirror count(Array::normal(DType::f32, E, 3)), bias(Array::normal(DType::f32, E, 4));
        UpdateRouterBias update{
            .count_E = count.host(), .bias_E = bias.host(), .E = E, .rate = 0.125f};
        cpu::run(update);
        update.count_E = count.device(), update.bias_E = bias.device();
        cuda::run(update, device_stream());
        REQUIRE(bias.same());
      });
}
