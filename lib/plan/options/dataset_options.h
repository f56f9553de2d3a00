// Options of the data: which tokenizer and which tokens a run reads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/document_share.h"
#include "base/packing_strategy.h"

namespace mtrain::plan {

struct TokenizerOptions {
  std::optional<std::string> path;  // a tokenizer.json or its folder; none: a token is a byte
  int64_t model_vocab = 0;          // model.vocab_size; 0: the tokenizer's vocabulary
  bool unknown = false;             // no tokenizer is known: ids have no text
  // The recipe gives a vocabulary size but no tokenizer. Ids may then mean something else than
  // bytes.
  bool assumed = false;
};

struct DatasetOptions {
  struct Blend {
    std::vector<std::string> prefixes;  // path prefixes of .bin/.idx pairs
    std::vector<double> weights;        // empty: the prefixes' numbers of tokens
    DocumentShare documents = {};       // those of each prefix that are read
  };
  Blend train, validation;
  // Each document is a sample of its own length; seq_length is the longest.
  bool rows = false;
  // Random tokens below `vocab_size` (0: the default) instead of files; 0 samples: none.
  struct Mock {
    int64_t samples = 0, vocab_size = 0;
  };
  Mock mock_train = {}, mock_validation = {};
  // Whether documents are sequences of their own in the micro-batch's one sequence.
  bool by_document() const { return rows || packed_size > 0; }
  int64_t seq_length = 0;
  int64_t packed_size = 0;  // documents are packed into samples of this length; 0: not packed
  bool drop_long = false;   // documents that are longer than a pack are left out
  PackingStrategy packing = PackingStrategy::first_fit;
  int64_t max_packs = 0;  // packs of each training prefix that are used; 0: all
  int64_t seed = 0;       // decides the order of the samples
  TokenizerOptions tokenizer = {};
};

}  // namespace mtrain::plan
