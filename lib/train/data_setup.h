// Opens a run's data: tokenizer, training and validation sets.
#pragma once
#include <memory>

#include "data/dataset/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/options/dataset_options.h"

namespace mtrain::train {

std::unique_ptr<data::Tokenizer> open_tokenizer(const plan::TokenizerOptions& options);

// Opens the tokenizer and returns the model's vocabulary. UserError where the model is given a
// smaller one than the tokenizer has.
int64_t vocabulary(const plan::TokenizerOptions& options);

// Ids at or above `vocab` in the data are an error.
std::shared_ptr<const data::Dataset> open_training_data(const plan::DatasetOptions& options,
                                                        int64_t vocab);
// Returns null where the recipe names no validation data.
std::shared_ptr<const data::Dataset> open_validation_data(const plan::DatasetOptions& options,
                                                          int64_t vocab);

}  // namespace mtrain::train
