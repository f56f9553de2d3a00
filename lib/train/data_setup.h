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

// Returns the number of ids in the model's vocabulary: what the recipe says, or the tokenizer's. A
// tokenizer may have more ids than the model, as long as no data hold them.
int64_t vocabulary(const plan::TokenizerOptions& options);

// Returns the check of what a model of `vocab` ids reads. Where bytes are only assumed it takes all
// ids of the model, and IdCheck::largest() says whether bytes suffice.
data::IdCheck id_check(const plan::TokenizerOptions& options, int64_t vocab);

// Opens the training data.
std::shared_ptr<const data::Dataset> open_training_data(const plan::DatasetOptions& options,
                                                        const data::IdCheck& ids);
// Returns how many samples an epoch of the training data has. Reads the index of the files, and the
// mask if there is one.
int64_t samples_of_epoch(const plan::DatasetOptions& options);
// Opens the validation data, without shuffling. Returns null if there are none. `name` is what
// errors call them.
//
// In packs, and in masked data, each document stands by itself: an answer depends on its own prompt
// alone, as it will in use. Where samples are not packed, such a document is a sample of its own.
std::shared_ptr<const data::Dataset> open_validation_data(const plan::DatasetOptions& options,
                                                          const data::IdCheck& ids,
                                                          const char* name = "dataset.validation");
// Opens a pair of files. `name` is what errors call it.
std::shared_ptr<const data::IndexedDataset> open_tokens(const std::string& prefix,
                                                        const char* name);

}  // namespace mtrain::train
