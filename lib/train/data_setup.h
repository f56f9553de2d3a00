// Opens a run's data: tokenizer, training and validation sets.
#pragma once
#include <memory>

#include "data/dataset/dataset.h"
#include "data/dataset/id_check.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/options/dataset_options.h"

namespace mtrain::train {

// Returns null if no tokenizer is known.
std::shared_ptr<const data::Tokenizer> open_tokenizer(const plan::TokenizerOptions& options);

// Returns the number of ids in the model's vocabulary: the recipe's, or else the tokenizer's. A
// tokenizer may have more ids than the model if the data do not contain the additional ones.
int64_t vocabulary(const plan::TokenizerOptions& options);

// Returns the check of the ids that a model of `vocab` ids reads. If the recipe names no tokenizer,
// the check accepts all ids of the model. IdCheck::largest() then shows whether the data may be
// bytes.
data::IdCheck id_check(const plan::TokenizerOptions& options, int64_t vocab);

// Opens the training data.
std::shared_ptr<const data::Dataset> open_training_data(const plan::DatasetOptions& options,
                                                        const data::IdCheck& ids);
// Returns how many samples an epoch of the training data has. Reads only the index of the files,
// and the mask if there is one.
int64_t samples_of_epoch(const plan::DatasetOptions& options);
// Opens the validation data, without shuffling. Returns null if there are none. Errors refer to
// them by `name`.
//
// In packs and in masked data, documents do not see each other. An answer depends only on its own
// prompt, as it will in use. If samples are not packed, each document of masked data is a sample.
std::shared_ptr<const data::Dataset> open_validation_data(const plan::DatasetOptions& options,
                                                          const data::IdCheck& ids,
                                                          const char* name = "dataset.validation");
// Opens the share of a pair of .bin/.idx files. Errors refer to it by `name`.
std::shared_ptr<const data::IndexedDataset> open_tokens(const std::string& prefix, const char* name,
                                                        const DocumentShare& share = {});

}  // namespace mtrain::train
