// How rotary positions are rescaled for contexts longer than the original one. model/rotary.h
// computes the frequencies.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "base/enum_name.h"

namespace mtrain::spec {

enum class RopeScalingType { none, linear, llama3, yarn, longrope };
constexpr auto enum_names(RopeScalingType) {
  return std::array{
      EnumName{RopeScalingType::none, "none"}, EnumName{RopeScalingType::linear, "linear"},
      EnumName{RopeScalingType::llama3, "llama3"}, EnumName{RopeScalingType::yarn, "yarn"},
      EnumName{RopeScalingType::longrope, "longrope"}};
}

struct RopeScaling {
  RopeScalingType type = RopeScalingType::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_positions = 8192;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;       // cos and sin are multiplied by it
  std::vector<double> lane_factors;  // longrope: divisor of each lane's frequency
  int64_t valid_positions = 0;       // positions for which lane_factors are valid; 0: all

  bool operator==(const RopeScaling&) const = default;
};

}  // namespace mtrain::spec
