// recompute: which activations backward computes again instead of keeping.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "recipe/field.h"

namespace mtrain {

enum class RecomputeGranularity { none, full, selective };
constexpr auto enum_names(RecomputeGranularity) {
  return std::array{EnumName{RecomputeGranularity::none, "none"},
                    EnumName{RecomputeGranularity::full, "full"},
                    EnumName{RecomputeGranularity::selective, "selective"}};
}

enum class RecomputeMethod { uniform, block };
constexpr auto enum_names(RecomputeMethod) {
  return std::array{EnumName{RecomputeMethod::uniform, "uniform"},
                    EnumName{RecomputeMethod::block, "block"}};
}

enum class RecomputeModule { core_attn };
constexpr auto enum_names(RecomputeModule) {
  return std::array{EnumName{RecomputeModule::core_attn, "core_attn"}};
}

struct RecomputeConfig {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  std::optional<RecomputeMethod> method;
  std::optional<int64_t> num_layers;
  std::vector<RecomputeModule> modules{RecomputeModule::core_attn};

  static constexpr auto fields = std::tuple{
      Field{"granularity",
            &RecomputeConfig::granularity,
            "full: whole layers; selective: only the listed modules",
            {.aliases = "model.recompute_granularity"}},
      Field{"method",
            &RecomputeConfig::method,
            "full: uniform keeps the input of every group of num_layers layers; block recomputes "
            "the first num_layers layers of each stage",
            {.aliases = "model.recompute_method"}},
      Field{"num_layers",
            &RecomputeConfig::num_layers,
            "full: layers per group, or per stage",
            {.aliases = "model.recompute_num_layers", .min = 1}},
      Field{"modules",
            &RecomputeConfig::modules,
            "selective: what is recomputed",
            {.aliases = "model.recompute_modules"}}};
};

}  // namespace mtrain
