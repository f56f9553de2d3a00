#include "model/rotary.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "device/device.h"

namespace mtrain::model {

namespace {

// The number of turns that a lane makes over the original context decides. Lanes with many turns
// keep their frequency, those with few are slowed by the factor, and between the two thresholds the
// frequency is interpolated.
double llama3_frequency(double f, const spec::RopeScaling& s) {
  const double turns = double(s.original_positions) * f / (2 * std::numbers::pi);
  const double keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  const double share = std::fmin(1.0, std::fmax(0.0, keep));
  return share * f + (1 - share) * f / s.factor;
}

// The lanes between which YaRN goes over from the frequencies as they are to the slowed ones.
struct YarnRamp {
  double first, last;

  YarnRamp(int64_t dims, double base, const spec::RopeScaling& s) {
    // The lane, as a real number, that makes so many turns over the original context.
    const auto lane = [&](double turns) {
      return double(dims) *
             std::log(double(s.original_positions) / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(base));
    };
    first = lane(s.beta_fast), last = lane(s.beta_slow);
    if (s.truncate) first = std::floor(first), last = std::ceil(last);
    first = std::fmax(first, 0), last = std::fmin(last, double(dims - 1));
    if (first == last) last += 0.001;  // a step; transformers takes this number, too
  }
  // Returns how much of the lane is slowed: 0 before the first, 1 from the last on.
  double slowed(int64_t lane) const {
    return std::fmin(1.0, std::fmax(0.0, (double(lane) - first) / (last - first)));
  }
};

}  // namespace

std::vector<double> rotary_frequencies(const spec::Rotary& rotary) {
  using enum spec::RopeScalingType;
  const auto& [dims, base, scaling] = rotary;
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dims / 2; ++i) {
    double f = std::pow(base, -2.0 * double(i) / double(dims));
    if (scaling.type == linear) f /= scaling.factor;
    if (scaling.type == llama3) f = llama3_frequency(f, scaling);
    if (scaling.type == yarn)
      f *= 1 - YarnRamp(dims, base, scaling).slowed(i) * (1 - 1 / scaling.factor);
    if (scaling.type == longrope) f /= scaling.lane_factors.at(size_t(i));
    frequencies.push_back(f);
  }
  return frequencies;
}

RotaryTables rotary_tables(Stream& stream, const spec::Rotary& rotary, int64_t positions) {
  const int64_t most = rotary.scaling.valid_positions;
  MT_CHECK(most == 0 || positions <= most, "{} positions with rotary factors for up to {}",
           positions, most);
  const auto frequencies = rotary_frequencies(rotary);
  const auto R = int64_t(frequencies.size());
  // Nothing reads the numbers of a recording device, and computing them would take longer than
  // recording a step.
  if (stream.device().is_recording()) {
    const auto table = [&] {
      return Tensor::empty(stream, {positions, R}, DType::f32, device::MemoryCategory::buffers);
    };
    return {table(), table()};
  }
  std::vector<float> cos(static_cast<size_t>(positions * R)), sin(cos.size());
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < R; ++i) {
      const double angle = double(p) * frequencies[size_t(i)];
      cos[size_t(p * R + i)] = float(std::cos(angle) * rotary.scaling.attention_factor);
      sin[size_t(p * R + i)] = float(std::sin(angle) * rotary.scaling.attention_factor);
    }
  return {Tensor::from_host(stream, {positions, R}, std::move(cos)),
          Tensor::from_host(stream, {positions, R}, std::move(sin))};
}

const RotaryTables* RotarySet::of(const spec::Rotary& rotary) {
  if (rotary.dims == 0) return nullptr;
  for (const auto& [known, tables] : tables_)
    if (known == rotary) return &tables;
  return &tables_.emplace_back(rotary, rotary_tables(stream_, rotary, positions_)).second;
}

}  // namespace mtrain::model
