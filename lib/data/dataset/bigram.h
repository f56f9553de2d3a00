// The loss of a table of token pairs: the baseline that a language model has to beat.
#pragma once
#include <cstdint>
#include <vector>

#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct BigramResult {
  double loss = 0;    // nats per token
  double alpha = 0;   // the smoothing that gave this loss
  int64_t pairs = 0;  // pairs in the validation tokens
};

// Returns the mean of -log p(b | a) over all neighbouring tokens a, b of `valid`. Here p(b | a) =
// (n(a, b) + alpha) / (n(a) + alpha vocab_size), and n counts occurrences in `train`. If tokens are
// masked, a pair counts only if its second token counts as a label. Returns the smallest loss of
// all `alphas`, since a poor alpha would make the baseline too easy. Memory is bounded by `valid`
// and the vocabulary, whatever the size of `train`.
BigramResult bigram_loss(const IndexedDataset& train, const IndexedDataset& valid,
                         int64_t vocab_size,
                         const std::vector<double>& alphas = {1.0, 0.3, 0.1, 0.03, 0.01, 0.003,
                                                              0.001});

}  // namespace mtrain::data
