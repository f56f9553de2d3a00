// Opens a run's data: tokenizer, training and validation sets.
#pragma once
#include <memory>

#include "data/dataset/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/options/dataset_options.h"

namespace mtrain::train {

std::shared_ptr<const data::Tokenizer> open_tokenizer(const plan::TokenizerOptions& options);

// Opens the tokenizer and returns the number of ids in the model's vocabulary. Throws UserError if
// the recipe gives the model a smaller vocabulary than the tokenizer has.
int64_t vocabulary(const plan::TokenizerOptions& options);

// Opens the training data. Ids at or above `vocab` in the data are an error.
std::shared_ptr<const data::Dataset> open_training_data(const plan::DatasetOptions& options,
                                                        int64_t vocab);
// Opens the validation data, without shuffling. Returns null if the recipe names none.
std::shared_ptr<const data::Dataset> open_validation_data(const plan::DatasetOptions& options,
                                                          int64_t vocab);

}  // namespace mtrain::train
