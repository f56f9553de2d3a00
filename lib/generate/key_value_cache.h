// Keeps the keys and values of the tokens that a model has seen, so that a new token costs one row
// of attention instead of its whole sequence.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "model/attention_core.h"

namespace mtrain::generate {

// Consecutive tokens of one sequence.
struct NewTokens {
  int64_t slot;   // the sequence's place in the cache
  int64_t first;  // position of the first of them; the cache has all positions before it
  int64_t count;
};

class KeyValueCache {
 public:
  // Has room for `slots` sequences of up to `positions` tokens. A layer's memory is allocated at
  // its first forward, (slots * positions, 2 G D) in the type of its activations. Throws UserError
  // for more rows than an int32 counts.
  KeyValueCache(int64_t slots, int64_t positions);

  // Returns what makes the cores of a model's layers (model::ModelImpls::attention_core), which
  // have no backward. A cache serves one model.
  std::function<std::unique_ptr<model::AttentionCore>(const model::HeadConfig&, int64_t layer)>
  cores() const;
  // Says which tokens are the rows of the next forward, in the rows' order: its SequenceInfo has
  // B = 1. The positions before `first` must be in the slot; those from it on are forgotten.
  void expect(const std::vector<NewTokens>& rows);

  int64_t slots() const;
  int64_t positions() const;

 private:
  struct State;
  class Core;
  std::shared_ptr<State> state_;
};

}  // namespace mtrain::generate
