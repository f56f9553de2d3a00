// Rotary angle tables, with the scalings that long-context models use.
#pragma once
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace mtrain::model {

// Returns the frequencies of the `dims` / 2 lanes in radians per position, with the scaling
// applied. `dims` elements of a head are rotated. linear: all frequencies are divided by the factor
// (Chen et al. 2023). llama3: only those whose wavelength is long against the original context
// ("The Llama 3 herd of models", 2024). yarn: those of lanes that turn seldom over the original
// context, with a ramp over the lanes between (Peng et al. 2023, "YaRN"). longrope: each is divided
// by a factor of its own (Ding et al. 2024).
std::vector<double> rotary_frequencies(int64_t dims, double base, const RopeScaling& scaling);

struct RotaryTables {
  Tensor cos_PR, sin_PR;  // fp32 (positions, R): R lanes, each of two elements of a head
};
// Returns the tables for positions [0, positions), multiplied by the scaling's attention_factor.
RotaryTables rotary_tables(Stream& stream, const GptConfig& c, int64_t positions);
// Returns those of the layers with a window, by c.local_rotary_base and without scaling.
RotaryTables local_rotary_tables(Stream& stream, const GptConfig& c, int64_t positions);

}  // namespace mtrain::model
