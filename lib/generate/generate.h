// Generates text with a trained model: prompts are computed in chunks, then each step adds one
// token to all sequences of a batch.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "generate/cached_model.h"
#include "generate/sampling.h"

namespace mtrain::generate {

struct GenerateOptions {
  int64_t tokens = 200;  // tokens to add
  SamplingOptions sampling = {};
  // The tokens at the beginning of a prompt: the same as for the model's texts in training.
  data::BeginOfText bos = data::BeginOfText::automatic;
  std::vector<std::string> stop = {};  // a text ends before any of these
  std::vector<int32_t> eos = {};       // ids that end a text
  int64_t context = 0;                 // tokens of the model's context, prompt included
  int64_t chunk = 512;                 // tokens of prompts in one forward
  bool echo_prompt = true;             // the text begins with the prompt
};

struct Request {
  std::string prompt;
  uint64_t sample = 0;  // the stream of its random draws: it makes equal requests differ
  std::string name = "the prompt";  // its name in errors
};

// Why a text ends.
enum class End { tokens, end_of_text, stop_string, context };
const char* end_name(End end);

// Receives the text and the end of each request, by its index.
struct Listener {
  std::function<void(size_t request, std::string_view text)> text;  // called piece by piece
  std::function<void(size_t request, End end)> end;
};

// Returns the number of tokens of the longest request plus options.tokens, at most options.context.
int64_t longest(const data::Tokenizer& tokenizer, const std::vector<Request>& requests,
                const GenerateOptions& options);

// Continues the prompts, as many at once as the model's cache has slots. Each slot must have room
// for the longest() request. On a CPU a request's text does not depend on the others; on a GPU
// libraries may choose different kernels for different sizes. Ids above the tokenizer's largest are
// never drawn. Throws UserError before any text if a prompt is empty, fills the context, or has a
// token that the model's vocabulary lacks.
void generate(CachedModel& model, const data::Tokenizer& tokenizer,
              const std::vector<Request>& requests, const GenerateOptions& options,
              const Listener& listener);

}  // namespace mtrain::generate
