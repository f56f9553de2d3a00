// Makes the model as a value from its section of the recipe: the only place that does.
#pragma once
#include <cstdint>

#include "spec/model_spec.h"

namespace mtrain::recipe {

struct ModelConfig;

// `vocab` is the true vocabulary; `sample_length` is the longest sequence unless the model has one.
spec::ModelSpec model_spec(const ModelConfig& model, int64_t vocab, int64_t sample_length);
// The same by the sizes of the section alone: its vocabulary, and sequences of all its positions.
spec::ModelSpec model_spec(const ModelConfig& model);

}  // namespace mtrain::recipe
