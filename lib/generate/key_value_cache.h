// Keeps the keys and values of the previous tokens, or their latents. A new token then costs one
// row of attention instead of its full sequence.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "model/attention_core.h"
#include "model/latent_core.h"

namespace mtrain::generate {

// Consecutive tokens of one sequence.
struct NewTokens {
  int64_t slot;   // the sequence's slot of the cache
  int64_t first;  // position of the first one; the cache has all positions before it
  int64_t count;
  bool of_prompt =
      false;  // a part of a prompt, of which a forward may compute any number of tokens
};

class KeyValueCache {
 public:
  // Has room for `slots` sequences of up to `positions` tokens. A layer's memory is allocated at
  // its first forward, (slots * positions, 2 G D) in the type of its activations. Throws UserError
  // if the number of rows exceeds an int32.
  KeyValueCache(int64_t slots, int64_t positions);

  // Returns the factory of the cores of a model's layers (model::ModelImpls::attention_core). They
  // have no backward. A cache serves one model.
  std::function<std::unique_ptr<model::AttentionCore>(const model::HeadConfig&, int64_t layer)>
  cores() const;
  // The same for layers with latent attention (model::ModelImpls::latent_core). The cache has
  // (slots * positions, C + R) numbers: a token's latent, and the elements that its keys share. New
  // tokens of one row each attend to latents. For several rows of a sequence, as in a prompt, the
  // latents are expanded, which gives the bits of a forward without a cache.
  std::function<std::unique_ptr<model::LatentCore>(const model::LatentConfig&, int64_t layer)>
  latent_cores() const;
  // Sets the tokens that are the rows of the next forward, in the order of the rows. Its
  // SequenceInfo must have B = 1. The positions before `first` must be in the slot; later positions
  // are removed from it.
  void expect(const std::vector<NewTokens>& rows);

  int64_t slots() const;
  int64_t positions() const;

 private:
  struct State;
  class Core;
  class Latents;
  std::shared_ptr<State> state_;
};

}  // namespace mtrain::generate
