// Random tokens, for benchmarks: no file is read.
#pragma once
#include <cstdint>

#include "data/dataset/dataset.h"

namespace mtrain::data {

struct MockDatasetOptions {
  int64_t seq_length = 0, samples = 0;
  int64_t vocab_size = 0;  // tokens are below it
  uint64_t seed = 0;
};

// Each sample has seq_length random tokens. The last one has no label.
class MockDataset final : public Dataset {
 public:
  explicit MockDataset(const MockDatasetOptions& options);
  int64_t seq_length() const override { return options_.seq_length; }
  int64_t size() const override { return options_.samples; }
  void sample(int64_t index, Sample& out) const override;

 private:
  MockDatasetOptions options_;
};

}  // namespace mtrain::data
