// From the recipe's sections to what the model takes: every "auto" resolved.
#pragma once
#include "model/gpt.h"
#include "recipe/recipe.h"

namespace mtrain {

// vocab: the recipe's vocab_size, or the tokenizer's where that is 0. tp: ranks that its rows are
// spread over.
GptConfig gpt_config(const ModelConfig& model, int64_t vocab, int64_t seq_length, int64_t tp = 1);
Recompute recompute_policy(const RecomputeConfig& recompute, int64_t layers);

}  // namespace mtrain
