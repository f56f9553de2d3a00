// Documents back to back as one stream of tokens, cut into sequences of equal length.
#pragma once
#include <cstdint>
#include <memory>

#include "data/dataset/dataset.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct GptDatasetOptions {
  int64_t seq_length = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // false: in order, epoch after epoch
  bool mask_document_ends =
      false;  // no loss where the label is the first token of the next document
  bool reset_positions =
      false;               // positions count from the document's start instead of the sequence's
  int64_t vocab_size = 0;  // > 0: a token at or above it is a UserError
};

// Sequence j is tokens [j S, j S + S] of the stream: S inputs, and the labels one further. Sample i
// of epoch e (that is, index e * size() + i) is the sequence that a permutation of (seed, e) puts
// there.
class GptDataset final : public Dataset {
 public:
  // Throws UserError when there is not even one sequence.
  GptDataset(std::shared_ptr<const IndexedDataset> tokens, const GptDatasetOptions& options);

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t size() const override { return size_; }
  void sample(int64_t index, Sample& out) const override;

 private:
  void walk_documents(int64_t first, Sample& out) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  GptDatasetOptions options_;
  int64_t size_ = 0;
};

}  // namespace mtrain::data
