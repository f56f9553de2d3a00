// Generates text with a trained model. Every new token runs the whole window again (no cache of
// keys and values), which is simple, and fast enough for samples of a small model.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"
#include "model/gpt.h"

namespace mtrain::generate {

struct GenerateOptions {
  int64_t tokens = 200;      // tokens to add
  float temperature = 0.8f;  // 0: always takes the likeliest token
  int64_t top_k = 40;        // draws among so many of the likeliest tokens; 0: among all
  uint64_t seed = 1;
  int64_t window = 0;  // the last tokens that the model sees; its training sequence length
};

// Calls `emit` with the prompt, and then with the bytes of each new token. Stops after
// options.tokens tokens or at the end-of-document token. Throws UserError if the prompt is empty or
// has a token that the model's vocabulary lacks.
void generate(Stream& stream, model::Gpt& model, const data::Tokenizer& tokenizer,
              std::string_view prompt, const GenerateOptions& options,
              const std::function<void(std::string_view)>& emit);

}  // namespace mtrain::generate
