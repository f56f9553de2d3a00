// Text from a trained model. Every new token runs the whole window again, which is simple, and fast
// enough to look at a small model.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"
#include "model/gpt.h"

namespace mtrain::generate {

struct GenerateOptions {
  int64_t tokens = 200;
  float temperature = 0.8f;  // 0: always the likeliest token
  int64_t top_k = 40;        // 0: all
  uint64_t seed = 1;
  int64_t window = 0;  // tokens the model may look back on; its training sequence length
};

// Calls `emit` with the prompt and then with the bytes of each new token as it comes; stops at the
// end-of-document token.
void generate(Stream& stream, model::Gpt& model, const data::Tokenizer& tokenizer,
              std::string_view prompt, const GenerateOptions& options,
              const std::function<void(std::string_view)>& emit);

}  // namespace mtrain::generate
