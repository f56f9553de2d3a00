// Routers of the tests: every form, and the sizes they are tried with.
#pragma once
#include <vector>

#include "kernels/router.h"
#include "test/support/kernels_testing.h"

namespace mtrain::test {

struct RouterCase {
  const char* name;
  int64_t T, E, K, B = 1;
  RouterForm form = {};
  bool biased = false, padded = false;
  bool given = false;  // the experts are given: E choices in turn, from one token to the next
  bool apart = false;  // the samples follow each other; otherwise tokens belong to them in turn

  int64_t sample(int64_t t) const { return apart ? t * B / T : t % B; }
};

inline std::vector<RouterCase> router_cases() {
  using enum RouterScore;
  return {
      {"one expert", 3, 1, 1},
      {"all experts", 5, 4, 4, 5, {.over_chosen = true}},
      {"softmax over the chosen (Mixtral)", 40, 8, 2, 2, {.over_chosen = true}, false, true},
      {"softmax over all (Qwen2-MoE)", 21, 60, 4, 3},
      {"normalized (Qwen3-MoE)", 24, 128, 8, 4, {.normalize = true, .scale = 1.5f}, true, true},
      {"groups of softmax (DeepSeek-V2)",
       18,
       64,
       6,
       1,
       {.scale = 16, .groups = 8, .best_groups = 3}},
      {"sigmoid (Llama 4)", 9, 33, 1, 1, {.score = sigmoid}},
      {"groups of sigmoid (DeepSeek-V3)",
       32,
       256,
       8,
       2,
       {.score = sigmoid, .normalize = true, .scale = 2.5f, .groups = 8, .best_groups = 4},
       true,
       true},
      {"groups ranked by their best expert (DeepSeek-V2)",
       18,
       64,
       6,
       2,
       {.scale = 16, .groups = 8, .best_groups = 3, .group_experts = 1}},
      {"groups ranked by two experts, of which a token has one",
       25,
       32,
       4,
       1,
       {.score = sigmoid, .groups = 8, .best_groups = 4, .group_experts = 2},
       true},
      {"groups ranked by more experts than they have",
       12,
       12,
       2,
       1,
       {.groups = 6, .best_groups = 2, .group_experts = 5}},
      {"fewer choices than groups",
       10,
       12,
       2,
       1,
       {.score = sigmoid, .groups = 4, .best_groups = 3},
       true},
      {"given experts, softmax over them", 20, 12, 5, 2, {.over_chosen = true}, true, true, true},
      {"given experts outside of the best groups",
       18,
       64,
       6,
       1,
       {.scale = 16, .groups = 8, .best_groups = 1},
       false,
       false,
       true},
      {"packs of unequal numbers of tokens, softmax",
       41,
       20,
       3,
       3,
       {.normalize = true},
       false,
       true,
       false,
       true},
      {"packs, sigmoid", 24, 33, 2, 4, {.score = sigmoid}, true, true, false, true},
  };
}

// The inputs of a case. Biases and logits differ so much that rounding changes no choice.
struct RouterInputs {
  Array logits_TE, bias_E, valid_T, choice_TK, dweight_TK, sample_T;
  RouterInputs(const RouterCase& c, DType type)
      : logits_TE(Array::normal(type, c.T * c.E, 11, 2)),
        bias_E(Array::normal(DType::f32, c.E, 12, 0.2f)),
        valid_T(DType::i32, c.T),
        choice_TK(DType::i32, c.T * c.K),
        dweight_TK(Array::normal(DType::f32, c.T * c.K, 13)),
        sample_T(DType::i32, c.T) {
    std::vector<int32_t> valid;
    for (int64_t t = 0; t < c.T; ++t) valid.push_back(c.padded && t % 5 == 3 ? 0 : 1);
    valid_T = Array::ids(valid);
    std::vector<int32_t> choice;
    for (int64_t i = 0; i < c.T * c.K; ++i) choice.push_back(int32_t(i % c.E));
    choice_TK = Array::ids(choice);
    std::vector<int32_t> sample;
    for (int64_t t = 0; t < c.T; ++t) sample.push_back(int32_t(c.sample(t)));
    sample_T = Array::ids(sample);
  }
};

}  // namespace mtrain::test
