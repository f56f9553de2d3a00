// Rotary angle tables, with the scalings that long-context models use.
#pragma once
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace mtrain::model {

// Returns the frequencies of the D / 2 lanes in radians per position, with the scaling applied.
// linear: all frequencies are divided by the factor (Chen et al. 2023). llama3: only those whose
// wavelength is long against the original context ("The Llama 3 herd of models", 2024).
std::vector<double> rotary_frequencies(int64_t head_dim, double base, const RopeScaling& scaling);

struct RotaryTables {
  Tensor cos_PR, sin_PR;  // fp32 (positions, D / 2)
};
// Returns the tables for positions [0, positions).
RotaryTables rotary_tables(Stream& stream, const GptConfig& c, int64_t positions);

}  // namespace mtrain::model
