#include "data/dataset/mock_dataset.h"

#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace mtrain::data {

MockDataset::MockDataset(const MockDatasetOptions& options) : options_(options) {
  MT_CHECK(options.seq_length > 0 && options.samples > 0 && options.vocab_size > 0,
           "{} samples of {} tokens below {}", options.samples, options.seq_length,
           options.vocab_size);
}

void MockDataset::sample(int64_t index, Sample& out) const {
  MT_CHECK(index >= 0, "sample {}", index);
  const auto S = size_t(options_.seq_length);
  const uint64_t key = rng_key(options_.seed, "mock data");
  const uint64_t first = uint64_t(index % options_.samples) * S;
  out.input.resize(S), out.label.resize(S), out.position.resize(S);
  out.documents.clear(), out.padding = 0;
  for (size_t s = 0; s < S; ++s)
    out.input[s] = int32_t(uniform_below(key, first + s, uint64_t(options_.vocab_size)));
  for (size_t s = 0; s + 1 < S; ++s) out.label[s] = out.input[s + 1];
  out.label[S - 1] = -1;
  std::iota(out.position.begin(), out.position.end(), 0);
}

}  // namespace mtrain::data
