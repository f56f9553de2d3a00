// recompute: which activations backward recomputes, instead of keeping them from the forward.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class RecomputeGranularity { none, full, selective };
constexpr auto enum_names(RecomputeGranularity) {
  // The names after the third are the values of distributed.activation_checkpointing.
  using R = RecomputeGranularity;
  return std::array{EnumName{R::none, "none"},
                    EnumName{R::full, "full"},
                    EnumName{R::selective, "selective"},
                    EnumName{R::none, "false"},
                    EnumName{R::none, "off"},
                    EnumName{R::none, "no"},
                    EnumName{R::none, "disabled"},
                    EnumName{R::full, "true"},
                    EnumName{R::full, "on"},
                    EnumName{R::full, "yes"},
                    EnumName{R::full, "enabled"}};
}

enum class RecomputeMethod { uniform, block };
constexpr auto enum_names(RecomputeMethod) {
  return std::array{EnumName{RecomputeMethod::uniform, "uniform"},
                    EnumName{RecomputeMethod::block, "block"}};
}

enum class RecomputeModule { core_attn, layernorm, mlp, moe, moe_act, shared_experts, mla_up_proj };
constexpr auto enum_names(RecomputeModule) {
  using M = RecomputeModule;
  return std::array{EnumName{M::core_attn, "core_attn"},
                    EnumName{M::layernorm, "layernorm"},
                    EnumName{M::layernorm, "norms"},
                    EnumName{M::mlp, "mlp"},
                    EnumName{M::moe, "moe"},
                    EnumName{M::moe_act, "moe_act"},
                    EnumName{M::shared_experts, "shared_experts"},
                    EnumName{M::mla_up_proj, "mla_up_proj"}};
}

struct RecomputeConfig {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  std::optional<RecomputeMethod> method;
  std::optional<int64_t> num_layers;
  std::vector<RecomputeModule> modules{RecomputeModule::core_attn};
  Auto<bool> cheap;

  bool selects(RecomputeModule module) const {
    return granularity == RecomputeGranularity::selective &&
           std::find(modules.begin(), modules.end(), module) != modules.end();
  }

  static constexpr auto fields = std::tuple{
      Field{"granularity",
            &RecomputeConfig::granularity,
            "full: recompute entire layers; selective: only the listed modules",
            {.aliases = "model.recompute_granularity distributed.activation_checkpointing"}},
      Field{"method",
            &RecomputeConfig::method,
            "full: uniform keeps the input of every group of num_layers layers; block recomputes "
            "the first num_layers layers of each stage",
            {.aliases = "model.recompute_method"}},
      Field{"num_layers",
            &RecomputeConfig::num_layers,
            "full: layers per group, or per stage",
            {.aliases = "model.recompute_num_layers", .min = 1}},
      Field{
          "modules",
          &RecomputeConfig::modules,
          "selective: the modules to recompute. layernorm: the outputs of a layer's norms, "
          "whatever recompute.cheap is; together with core_attn, also those of the norms of "
          "queries and keys. mla_up_proj: queries, keys and values of latent attention, from their "
          "latents",
          {.aliases = "model.recompute_modules"}},
      Field{"cheap", &RecomputeConfig::cheap,
            "recompute the outputs of norms and activation functions in backward, which takes few "
            "operations; false keeps them; auto keeps them on a GPU if the planned memory leaves a "
            "tenth of it free"}};
};

}  // namespace mtrain::recipe
