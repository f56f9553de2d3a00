// A model with a key-value cache: computes new tokens of several sequences at once.
#pragma once
#include <span>
#include <vector>

#include "generate/key_value_cache.h"
#include "model/gpt.h"

namespace mtrain::generate {

// The next tokens of a sequence, one or more.
struct Piece {
  int64_t slot;   // the sequence's slot of the cache
  int64_t first;  // position of the first token; the positions before it are already in this slot
  std::span<const int32_t> ids;
  bool of_prompt = false;  // as in NewTokens
};

class CachedModel {
 public:
  // The model's layers must use the cores of `cache`. All three must outlive this object.
  CachedModel(Stream& stream, model::Gpt& model, KeyValueCache& cache);

  // Computes the tokens of all pieces in one forward; the pieces must have different slots. Returns
  // the logits of each piece's last token, (vocabulary) numbers. Under tensor parallelism all ranks
  // must call it, and get the same numbers.
  std::vector<std::vector<float>> forward(const std::vector<Piece>& pieces);

  int64_t vocabulary() const { return model_.spec().vocab; }
  const KeyValueCache& cache() const { return cache_; }

 private:
  Stream& stream_;
  model::Gpt& model_;
  KeyValueCache& cache_;
};

}  // namespace mtrain::generate
