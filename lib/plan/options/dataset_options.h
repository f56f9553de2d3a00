// Which tokens a run reads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mtrain::plan {

struct TokenizerOptions {
  std::optional<std::string> path;  // a tokenizer.json or its folder; none: a token is a byte
  int64_t model_vocab = 0;          // the vocabulary that the model is given; 0: the tokenizer's
};

struct DatasetOptions {
  struct Blend {
    std::vector<std::string> prefixes;  // of .bin/.idx pairs
    std::vector<double> weights;        // empty: by their numbers of tokens
  };
  Blend train, validation;
  int64_t seq_length = 0;
  int64_t packed_size = 0;  // documents are packed into samples of this length; 0: they are not
  bool drop_long = false;   // leave out documents that are longer than a pack
  int64_t seed = 0;         // of the order of the samples
};

}  // namespace mtrain::plan
