// Tokenizes the rows of dataset.train_samples and validation_samples when a run starts.
#pragma once
#include <functional>

#include "base/error.h"
#include "recipe/recipe.h"

namespace mtrain {

// Whether the recipe has rows that are read from files.
bool has_sample_files(const Recipe& recipe);
// Adds a mistake in the rows of dataset.train or dataset.validation to those of the recipe.
void add_sample_mistake(const UserError& mistake, Diagnostics& diagnostics);
// Adds an error for rows whose files cannot be read.
void check_sample_files(const Recipe& recipe, Diagnostics& diagnostics);

// Sets Recipe::train_tokens and validation_tokens: from the cache, or by tokenizing the rows. In
// rows, dataset.seq_length then has room for the longest, unless rows are cut. `shows`: prints
// where the tokens are, and that others tokenize. The process that tokenizes always prints its
// progress. `alive` is called often. Ranks call it at the same time. Throws UserError, RunError.
void tokenize_samples(Recipe& recipe, Diagnostics& diagnostics, bool shows,
                      const std::function<void()>& alive = {});

}  // namespace mtrain
