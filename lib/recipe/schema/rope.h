// model.rope_scaling: how rotary positions reach beyond the length that a model was first trained
// with.
#pragma once
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "recipe/schema/field.h"
#include "spec/rope_scaling.h"

namespace mtrain::recipe {

using spec::RopeScalingType;

struct RopeScalingConfig {
  RopeScalingType type = RopeScalingType::none;
  double factor = 8.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  std::vector<double> short_factor, long_factor;

  // Returns what cos and sin are multiplied by in a model of so many positions.
  double attention_scale(int64_t max_positions) const;
  // Returns what longrope divides the frequencies of the lanes by in a model that is trained with
  // samples of this many tokens.
  const std::vector<double>& lane_factors(int64_t sample_length) const {
    return sample_length > original_max_position_embeddings ? long_factor : short_factor;
  }

  static constexpr auto fields = std::tuple{
      Field{"type",
            &RopeScalingConfig::type,
            "how positions beyond the original length are rescaled",
            {.aliases = "model.rope_scaling.rope_type"}},
      Field{"factor",
            &RopeScalingConfig::factor,
            "linear, llama3, yarn: how many times longer than the original",
            {.aliases = "model.rope_scaling_factor model.seq_len_interpolation_factor", .min = 1}},
      Field{"low_freq_factor",
            &RopeScalingConfig::low_freq_factor,
            "llama3: wavelengths above original / low_freq_factor are fully rescaled",
            {.min = 0, .above_min = true}},
      Field{"high_freq_factor",
            &RopeScalingConfig::high_freq_factor,
            "llama3: wavelengths below original / high_freq_factor stay as they are",
            {.min = 0, .above_min = true}},
      Field{"original_max_position_embeddings",
            &RopeScalingConfig::original_max_position_embeddings,
            "llama3, yarn, longrope: sequence length the model was first trained with",
            {.unit = "tokens", .min = 2}},
      Field{"beta_fast",
            &RopeScalingConfig::beta_fast,
            "yarn: lanes with more turns over the original length stay as they are",
            {.min = 0, .above_min = true}},
      Field{"beta_slow",
            &RopeScalingConfig::beta_slow,
            "yarn: lanes with fewer turns over the original length are fully rescaled",
            {.min = 0, .above_min = true}},
      Field{"truncate", &RopeScalingConfig::truncate,
            "yarn: round the lanes of beta_fast and beta_slow outwards to whole ones"},
      Field{"attention_factor",
            &RopeScalingConfig::attention_factor,
            "cos and sin are multiplied by it; unless set, yarn takes 0.1 ln(factor) + 1, and "
            "longrope sqrt(1 + ln(max_position_embeddings / original) / ln(original))",
            {.min = 0, .above_min = true}},
      Field{"mscale",
            &RopeScalingConfig::mscale,
            "yarn, without attention_factor and beside mscale_all_dim: cos and sin are multiplied "
            "by (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)",
            {.min = 0}},
      Field{"mscale_all_dim",
            &RopeScalingConfig::mscale_all_dim,
            "yarn: the other part of mscale's quotient",
            {.min = 0}},
      Field{"short_factor",
            &RopeScalingConfig::short_factor,
            "longrope: a divisor of each lane's frequency, where samples are not longer than the "
            "original length",
            {.min = 0, .above_min = true}},
      Field{"long_factor",
            &RopeScalingConfig::long_factor,
            "longrope: the same where samples are longer",
            {.min = 0, .above_min = true}}};
};

}  // namespace mtrain::recipe
