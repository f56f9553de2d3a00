// The recipe's data: tokenizer, training and validation sets.
#pragma once
#include <memory>

#include "data/dataset.h"
#include "data/tokenizer.h"
#include "recipe/recipe.h"

namespace mtrain {

std::unique_ptr<Tokenizer> open_tokenizer(const TokenizerConfig& c);

// vocab: ids at or above it in the data are an error.
std::shared_ptr<const Dataset> open_training_data(const Recipe& r, int64_t vocab);
std::shared_ptr<const Dataset> open_validation_data(
    const Recipe& r, int64_t vocab);  // null where the recipe names none

}  // namespace mtrain
