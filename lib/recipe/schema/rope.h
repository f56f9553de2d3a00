// model.rope_scaling: how rotary positions extend beyond the length of a model's first training.
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

  // Returns the factor of cos and sin in a model of this many positions.
  double attention_scale(int64_t max_positions) const;
  // Returns the divisors of longrope for the frequencies of the lanes, in a model that is trained
  // with samples of this many tokens.
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
            "linear, llama3, yarn: new context length divided by the original length",
            {.aliases = "model.rope_scaling_factor model.seq_len_interpolation_factor", .min = 1}},
      Field{"low_freq_factor",
            &RopeScalingConfig::low_freq_factor,
            "llama3: wavelengths above original / low_freq_factor are fully rescaled",
            {.min = 0, .above_min = true}},
      Field{"high_freq_factor",
            &RopeScalingConfig::high_freq_factor,
            "llama3: wavelengths below original / high_freq_factor are not rescaled",
            {.min = 0, .above_min = true}},
      Field{"original_max_position_embeddings",
            &RopeScalingConfig::original_max_position_embeddings,
            "llama3, yarn, longrope: sequence length the model was first trained with",
            {.unit = "tokens", .min = 2}},
      Field{"beta_fast",
            &RopeScalingConfig::beta_fast,
            "yarn: frequencies with more turns than this over the original length are not rescaled",
            {.min = 0, .above_min = true}},
      Field{"beta_slow",
            &RopeScalingConfig::beta_slow,
            "yarn: frequencies with fewer turns than this over the original length are fully "
            "rescaled",
            {.min = 0, .above_min = true}},
      Field{"truncate", &RopeScalingConfig::truncate,
            "yarn: round the indices of the frequencies at beta_fast and beta_slow outwards to "
            "integers"},
      Field{"attention_factor",
            &RopeScalingConfig::attention_factor,
            "factor of cos and sin; unless set, 0.1 ln(factor) + 1 for yarn, and sqrt(1 + "
            "ln(max_position_embeddings / original) / ln(original)) for longrope",
            {.min = 0, .above_min = true}},
      Field{"mscale",
            &RopeScalingConfig::mscale,
            "yarn, with mscale_all_dim and without attention_factor: cos and sin are multiplied by "
            "(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)",
            {.min = 0}},
      Field{"mscale_all_dim",
            &RopeScalingConfig::mscale_all_dim,
            "yarn: used together with mscale, in the denominator of that factor; latent attention "
            "also multiplies scores by the square of 0.1 mscale_all_dim ln(factor) + 1",
            {.min = 0}},
      Field{"short_factor",
            &RopeScalingConfig::short_factor,
            "longrope: a divisor for each frequency, used if samples are not longer than the "
            "original length",
            {.min = 0, .above_min = true}},
      Field{"long_factor",
            &RopeScalingConfig::long_factor,
            "longrope: a divisor for each frequency, used if samples are longer than the original "
            "length",
            {.min = 0, .above_min = true}}};
};

}  // namespace mtrain::recipe
