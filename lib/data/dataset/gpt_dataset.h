// A data set that concatenates all documents and cuts this stream of tokens into sequences of equal
// length.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset/dataset.h"
#include "data/dataset/id_check.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct GptDatasetOptions {
  int64_t seq_length = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // false: sequences in their order, epoch after epoch
  // Gives no loss to a label that is the first token of the next document.
  bool mask_document_ends = false;
  // Counts positions from the start of the document instead of the sequence.
  bool reset_positions = false;
  IdCheck ids = {};  // for every token that is read, including masked ones
};

// Sequence j has the tokens [j S, j S + S] of the stream: S inputs, and the labels, shifted by one
// token. Sample i of epoch e, which has the index e * size() + i, is sequence p(i); the random
// permutation p depends on (seed, e). If tokens are masked, sequences in which no label counts are
// left out, and j counts the others.
class GptDataset final : public Dataset {
 public:
  // Throws UserError if there are too few tokens for one sequence.
  GptDataset(std::shared_ptr<const IndexedDataset> tokens, const GptDatasetOptions& options);

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t size() const override { return size_; }
  void sample(int64_t index, Sample& out) const override;
  std::string note() const override;

 private:
  void walk_documents(int64_t first, Sample& out) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  GptDatasetOptions options_;
  int64_t size_ = 0;
  std::vector<int64_t> kept_;  // the sequences in which some label counts, if tokens are masked
  int64_t left_out_ = 0;
};

}  // namespace mtrain::data
