// The recipe's data: tokenizer, training and validation sets.
#pragma once
#include <memory>

#include "data/dataset.h"
#include "data/tokenizer.h"
#include "recipe/recipe.h"

namespace mtrain {

std::unique_ptr<Tokenizer> open_tokenizer(const TokenizerConfig& c);

// The model's vocabulary: model.vocab_size, or the tokenizer's where that is 0. Throws UserError
// where the tokenizer has more ids.
int64_t vocabulary(const Recipe& r);

// vocab: ids at or above it in the data are an error.
std::shared_ptr<const Dataset> open_training_data(const Recipe& r, int64_t vocab);
std::shared_ptr<const Dataset> open_validation_data(
    const Recipe& r, int64_t vocab);  // null where the recipe names none

}  // namespace mtrain
