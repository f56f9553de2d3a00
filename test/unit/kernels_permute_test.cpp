#include <catch2/catch.hpp>

#include "kernels/permute.h"
#include "test/support/kernels_testing.h"

namespace kernels_permute_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

std::vector<int32_t> numbers(const Array& a) {
  const auto* p = a.span().as<int32_t>();
  return {p, p + a.size()};
}

// Random choices, some of them dropped.
std::vector<int32_t> random_experts(int64_t choices, int64_t E) {
  std::vector<int32_t> expert(static_cast<size_t>(choices));
  for (int64_t i = 0; i < choices; ++i) expert[i] = int32_t(uniform_below(7, i, E + 1)) - 1;
  return expert;
}

struct Routing {
  Array row_TK, choice_R;
};
Routing route(const std::vector<int32_t>& expert, int64_t T, int64_t K, int64_t E) {
  Routing made{Array(DType::i32, T * K), Array(DType::i32, T * K)};
  Array count(DType::i32, E);
  cpu::run(ExpertRows{.expert_TK = Array::ids(expert),
                      .count_E = count,
                      .row_TK = made.row_TK,
                      .choice_R = made.choice_R,
                      .T = T,
                      .K = K,
                      .E = E});
  return made;
}

}  // namespace

TEST_CASE("rows are those of the experts in turn, each in the order of the tokens") {
  // Tokens 0 to 3, with two choices each; 3 and -1 are not experts.
  const Array expert = Array::ids({2, 0, 0, 2, 3, 0, -1, 2});
  Array count(DType::i32, 3), row(DType::i32, 8), choice(DType::i32, 8);
  cpu::run(ExpertRows{.expert_TK = expert,
                      .count_E = count,
                      .row_TK = row,
                      .choice_R = choice,
                      .T = 4,
                      .K = 2,
                      .E = 3});
  CHECK(numbers(count) == std::vector<int32_t>{3, 0, 3});
  CHECK(numbers(row) == std::vector<int32_t>{3, 0, 1, 4, -1, 2, -1, 5});
  CHECK(numbers(choice) == std::vector<int32_t>{1, 2, 5, 0, 3, 7, -1, -1});
  // These are the rows of the experts 2 and 3 alone.
  Array first(DType::i32, 3);
  cpu::run(ExpertRows{.expert_TK = expert,
                      .count_E = count,
                      .row_TK = row,
                      .choice_R = choice,
                      .T = 4,
                      .K = 2,
                      .E = 2,
                      .first_E1 = first,
                      .begin = 2});
  CHECK(numbers(row) == std::vector<int32_t>{0, -1, -1, 1, 3, -1, -1, 2});
  CHECK(numbers(choice) == std::vector<int32_t>{0, 3, 7, 4, -1, -1, -1, -1});
  CHECK(numbers(first) == std::vector<int32_t>{0, 3, 4});
}

TEST_CASE("with a capacity every expert has as many rows, and choices beyond are dropped") {
  // Tokens 0 to 3, with two choices each; 3 and -1 are not experts.
  const Array expert = Array::ids({2, 0, 0, 2, 3, 0, -1, 2});
  for (const int64_t capacity : {2, 4}) {
    Array count(DType::i32, 3), row(DType::i32, 8), choice(DType::i32, 3 * capacity),
        first(DType::i32, 4);
    cpu::run(ExpertRows{.expert_TK = expert,
                        .count_E = count,
                        .row_TK = row,
                        .choice_R = choice,
                        .T = 4,
                        .K = 2,
                        .E = 3,
                        .first_E1 = first,
                        .capacity = capacity});
    const bool all = capacity == 4;
    CHECK(numbers(count) == (all ? std::vector<int32_t>{3, 0, 3} : std::vector<int32_t>{2, 0, 2}));
    CHECK(numbers(row) == (all ? std::vector<int32_t>{8, 0, 1, 9, -1, 2, -1, 10}
                               : std::vector<int32_t>{4, 0, 1, 5, -1, -1, -1, -1}));
    CHECK(numbers(choice) == (all ? std::vector<int32_t>{1, 2, 5, -1, -1, -1, -1, -1, 0, 3, 7, -1}
                                  : std::vector<int32_t>{1, 2, -1, -1, 0, 3}));
    CHECK(numbers(first) ==
          (all ? std::vector<int32_t>{0, 4, 8, 12} : std::vector<int32_t>{0, 2, 4, 6}));
    CHECK((choice.margin_untouched() && row.margin_untouched()));
    // There may be more rows than choices.
    const Array x(DType::f32, {1, 2, 3, 4});
    Array rows(DType::f32, 3 * capacity), sums(DType::f32, 4);
    cpu::run(Permute{
        .x_TH = x, .choice_R = choice, .out_RH = rows, .T = 4, .K = 2, .R = 3 * capacity, .H = 1});
    cpu::run(Unpermute{
        .x_RH = rows, .row_TK = row, .out_TH = sums, .T = 4, .K = 2, .R = 3 * capacity, .H = 1});
    CHECK(sums.values() ==
          (all ? std::vector<double>{2, 4, 3, 4} : std::vector<double>{2, 4, 0, 0}));
  }
}

TEST_CASE("permute and unpermute move and weigh rows, under every instruction set") {
  Closeness close("permute and unpermute");
  for (auto [T, K, E, H] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                            {37, 2, 4, 33},
                            {300, 8, 64, 48},
                            {5, 3, 2, 1030}})
    for (DType type : kFloats) {
      const Routing to = route(random_experts(T * K, E), T, K, E);
      const auto row = numbers(to.row_TK), choice = numbers(to.choice_R);
      const int64_t R = T * K;
      const Array x = Array::normal(type, T * H, 1), y = Array::normal(type, R * H, 2),
                  weight = Array::normal(DType::f32, T * K, 3);
      for (bool weighted : {false, true})
        for_each_isa([&](const char* isa) {
          CAPTURE(T, K, E, H, type, weighted, isa);
          const ConstSpan w = weighted ? ConstSpan(weight) : ConstSpan{};
          Array rows(type, R * H), tokens(type, T * H), dweight(DType::f32, T * K);
          cpu::run(Permute{.x_TH = x,
                           .choice_R = to.choice_R,
                           .weight_TK = w,
                           .out_RH = rows,
                           .T = T,
                           .K = K,
                           .R = R,
                           .H = H});
          cpu::run(Unpermute{.x_RH = y,
                             .row_TK = to.row_TK,
                             .weight_TK = w,
                             .out_TH = tokens,
                             .T = T,
                             .K = K,
                             .R = R,
                             .H = H});
          cpu::run(UnpermuteWeightGrad{.dout_TH = x,
                                       .x_RH = y,
                                       .row_TK = to.row_TK,
                                       .dweight_TK = dweight,
                                       .T = T,
                                       .K = K,
                                       .R = R,
                                       .H = H});
          std::vector<double> want_rows(size_t(R * H)), want_tokens(size_t(T * H)),
              want_dweight(size_t(T * K));
          for (int64_t i = 0; i < T * K; ++i) {
            const double by = weighted ? weight[i] : 1;
            for (int64_t h = 0; h < H && row[i] >= 0; ++h) {
              const int64_t of_token = i / K * H + h, of_row = row[i] * H + h;
              want_rows[of_row] = by * x[of_token];
              want_tokens[of_token] += by * y[of_row];
              want_dweight[i] += x[of_token] * y[of_row];
            }
          }
          REQUIRE(close(rows, want_rows, {.dtype = type, .sums = DType::f32}) == "");
          REQUIRE(close(tokens, want_tokens,
                        {.dtype = type, .K = double(K), .scale = 4, .sums = DType::f32}) == "");
          REQUIRE(close(dweight, want_dweight, {.K = double(H), .scale = 4}) == "");
          REQUIRE(
              (rows.margin_untouched() && tokens.margin_untouched() && dweight.margin_untouched()));
        });
    }
}

TEST_CASE("choices of rows that are left out count as dropped") {
  const Routing to = route({0, 1, 1, 0}, 4, 1, 2);  // rows 0, 2, 3, 1
  const Array y(DType::f32, std::vector<double>{1, 2, 4}), x(DType::f32, {1, 1, 1, 1});
  Array tokens(DType::f32, 4), dweight(DType::f32, 4);
  cpu::run(
      Unpermute{.x_RH = y, .row_TK = to.row_TK, .out_TH = tokens, .T = 4, .K = 1, .R = 3, .H = 1});
  cpu::run(UnpermuteWeightGrad{.dout_TH = x,
                               .x_RH = y,
                               .row_TK = to.row_TK,
                               .dweight_TK = dweight,
                               .T = 4,
                               .K = 1,
                               .R = 3,
                               .H = 1});
  CHECK(tokens.values() == std::vector<double>{1, 4, 0, 2});
  CHECK(dweight.values() == std::vector<double>{1, 4, 0, 2});
}

TEST_CASE("the gradients of permute and unpermute equal finite differences") {
  const int64_t T = 4, K = 2, E = 3, H = 3, R = T * K;
  const Routing to = route({2, 0, 0, 2, -1, 0, 1, 2}, T, K, E);
  const auto row = numbers(to.row_TK);
  const Array x = Array::normal(DType::f32, R * H, 1), weight = Array::normal(DType::f32, R, 2),
              dout = Array::normal(DType::f32, T * H, 3);
  // The loss: dout . unpermute(x, weight).
  const auto loss = [&](const auto& of_x, const auto& of_weight) {
    double sum = 0;
    for (int64_t i = 0; i < R; ++i)
      for (int64_t h = 0; h < H && row[i] >= 0; ++h)
        sum += of_weight[i] * of_x[row[i] * H + h] * dout[i / K * H + h];
    return sum;
  };
  Closeness close("unpermute backward, finite differences");
  Array dx(DType::f32, R * H), dweight(DType::f32, R);
  cpu::run(Permute{.x_TH = dout,
                   .choice_R = to.choice_R,
                   .weight_TK = weight,
                   .out_RH = dx,
                   .T = T,
                   .K = K,
                   .R = R,
                   .H = H});
  cpu::run(UnpermuteWeightGrad{.dout_TH = dout,
                               .x_RH = x,
                               .row_TK = to.row_TK,
                               .dweight_TK = dweight,
                               .T = T,
                               .K = K,
                               .R = R,
                               .H = H});
  const auto w = weight.values(), v = x.values();
  REQUIRE(close(dx, finite_difference(v, [&](const auto& p) { return loss(p, w); }), {.K = 4}) ==
          "");
  REQUIRE(close(dweight, finite_difference(w, [&](const auto& p) { return loss(v, p); }),
                {.K = 4}) == "");
}

TEST_CASE("permute and unpermute refuse rows and choices that do not exist") {
  Array x(DType::f32, 6), out(DType::f32, 6);
  REQUIRE_THROWS_WITH(cpu::run(Permute{.x_TH = x,
                                       .choice_R = Array::ids({0, 2}),
                                       .out_RH = out,
                                       .T = 2,
                                       .K = 1,
                                       .R = 2,
                                       .H = 3}),
                      Catch::Contains("choice[1] = 2 is not in [-1, 2)"));
  REQUIRE_THROWS_WITH(
      cpu::run(Unpermute{
          .x_RH = x, .row_TK = Array::ids({-2, 0}), .out_TH = out, .T = 2, .K = 1, .R = 2, .H = 3}),
      Catch::Contains("row[0] = -2 is not in [-1, 2)"));
}

}  // namespace kernels_permute_test
