// Creates a ModelSpec from the model section of a recipe. The programs create all of theirs here.
#pragma once
#include <cstdint>

#include "spec/model_spec.h"

namespace mtrain::recipe {

struct ModelConfig;

// `vocab` is the vocabulary without padding. `sample_length` is the maximum length of a sequence if
// the section does not set one.
spec::ModelSpec model_spec(const ModelConfig& model, int64_t vocab, int64_t sample_length);
// The same with the section's own vocab_size and max_position_embeddings.
spec::ModelSpec model_spec(const ModelConfig& model);

}  // namespace mtrain::recipe
