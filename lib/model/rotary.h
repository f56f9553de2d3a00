// Rotary angle tables, with the scalings that long-context models use.
#pragma once
#include <deque>
#include <utility>
#include <vector>

#include "spec/layer_spec.h"
#include "tensor/tensor.h"

namespace mtrain::model {

// Returns the frequencies of the dims / 2 lanes in radians per position, with the scaling applied.
// linear: all frequencies are divided by the factor
// (Chen et al. 2023). llama3: only those whose wavelength is long against the original context
// ("The Llama 3 herd of models", 2024). yarn: those of lanes that turn seldom over the original
// context, with a ramp over the lanes between (Peng et al. 2023, "YaRN"). longrope: each is divided
// by a factor of its own (Ding et al. 2024).
std::vector<double> rotary_frequencies(const spec::Rotary& rotary);

struct RotaryTables {
  Tensor cos_PR, sin_PR;  // fp32 (positions, R): R lanes, each of two elements of a head
};
// Returns the tables for positions [0, positions), multiplied by the scaling's attention_factor.
RotaryTables rotary_tables(Stream& stream, const spec::Rotary& rotary, int64_t positions);

// The tables of a model's layers. Layers that rotate alike share theirs.
class RotarySet {
 public:
  RotarySet(Stream& stream, int64_t positions) : stream_(stream), positions_(positions) {}
  // Returns a layer's tables, which live as long as this set; null if the layer does not rotate.
  const RotaryTables* of(const spec::Rotary& rotary);

 private:
  Stream& stream_;
  const int64_t positions_;
  std::deque<std::pair<spec::Rotary, RotaryTables>> tables_;
};

}  // namespace mtrain::model
