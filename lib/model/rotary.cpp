#include "model/rotary.h"

#include <cmath>
#include <numbers>

namespace mtrain::model {

std::vector<double> rotary_frequencies(int64_t head_dim, double base, const RopeScaling& scaling) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double f = std::pow(base, -2.0 * double(i) / double(head_dim));
    if (scaling.kind == RopeScaling::Kind::linear) f /= scaling.factor;
    if (scaling.kind == RopeScaling::Kind::llama3) {
      // The number of turns that lane i makes over the original context decides. Lanes with many
      // turns keep their frequency, those with few are slowed by the factor, and between the two
      // thresholds the frequency is interpolated.
      const double turns = double(scaling.original_positions) * f / (2 * std::numbers::pi);
      const double keep =
          (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      const double share = std::fmin(1.0, std::fmax(0.0, keep));
      f = share * f + (1 - share) * f / scaling.factor;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

RotaryTables rotary_tables(Stream& stream, const GptConfig& c, int64_t positions) {
  const auto frequencies = rotary_frequencies(c.head_dim, c.rotary_base, c.rope_scaling);
  const auto R = int64_t(frequencies.size());
  std::vector<float> cos(static_cast<size_t>(positions * R)), sin(cos.size());
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < R; ++i) {
      const double angle = double(p) * frequencies[size_t(i)];
      cos[size_t(p * R + i)] = float(std::cos(angle));
      sin[size_t(p * R + i)] = float(std::sin(angle));
    }
  return {Tensor::from_host(stream, {positions, R}, std::move(cos)),
          Tensor::from_host(stream, {positions, R}, std::move(sin))};
}

}  // namespace mtrain::model
