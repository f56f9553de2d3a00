// peft: low-rank adapters (LoRA) that are trained instead of the model's own weights.
#pragma once
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

struct PeftConfig {
  int64_t dim = 0;
  double alpha = 32, dropout = 0;
  std::vector<std::string> target_modules, exclude_modules;
  bool match_all_linear = false, moe_rank_scaling = false;

  bool on() const { return dim > 0; }

  static constexpr auto fields = std::tuple{
      Field{"dim",
            &PeftConfig::dim,
            "rank of the adapters A and B: y = W x + (alpha / dim) B A x, with W frozen; 0 trains "
            "all weights. 8 unless set, if the recipe has the section",
            {.aliases = "peft.r", .min = 0, .max = 65536}},
      Field{"alpha",
            &PeftConfig::alpha,
            "the adapters' outputs are multiplied by alpha / dim",
            {.aliases = "peft.lora_alpha", .min = 0, .above_min = true}},
      Field{"dropout",
            &PeftConfig::dropout,
            "dropout of the adapters' inputs",
            {.aliases = "peft.lora_dropout", .min = 0, .max = 1, .below_max = true}},
      Field{"target_modules", &PeftConfig::target_modules,
            "linears that get adapters, by the names of Hugging Face (q_proj, *.mlp.down_proj) or "
            "Megatron-Bridge (linear_qkv); * stands for any text; `experts` stands for the "
            "matrices of all experts; all linears but these unless set"},
      Field{"exclude_modules", &PeftConfig::exclude_modules,
            "linears that get none, by the same names"},
      Field{"match_all_linear", &PeftConfig::match_all_linear,
            "all linears of the layers but those of experts get adapters, whatever target_modules "
            "is"},
      Field{"moe_rank_scaling", &PeftConfig::moe_rank_scaling,
            "the adapter of an expert has the rank dim / (experts of a token), rounded down"}};
};

}  // namespace mtrain::recipe
