// The bar a language model has to beat: the loss of a table of pairs.
#pragma once
#include <cstdint>
#include <vector>

#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct BigramResult {
  double loss = 0;    // nats per token
  double alpha = 0;   // the smoothing it was best with
  int64_t pairs = 0;  // evaluated
};

// Mean of -log p(b | a) over neighbouring tokens a, b of `valid`, with p(b | a) = (n(a, b) + alpha)
// / (n(a) + alpha V) counted on `train`; the best of `alphas`, so that the bar is not lowered by a
// poor choice. Only pairs that occur in `valid` are counted: memory is bounded by it and the
// vocabulary.
BigramResult bigram_loss(const IndexedDataset& train, const IndexedDataset& valid,
                         int64_t vocab_size,
                         const std::vector<double>& alphas = {1.0, 0.3, 0.1, 0.03, 0.01, 0.003,
                                                              0.001});

}  // namespace mtrain::data
