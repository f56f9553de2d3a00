// A data set whose samples are the documents, one by one, at their own lengths. A micro-batch of n
// samples is n documents that follow each other, without padding between them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset/dataset.h"
#include "data/dataset/id_check.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct RowsDatasetOptions {
  int64_t longest = 0;  // inputs per row; the rest of a longer document is cut off
  uint64_t seed = 0;
  bool shuffle = true;  // false: rows in their order, epoch after epoch
  IdCheck ids = {};     // for every token that is read, including masked ones
};

// A document of n tokens gives a row of n - 1 inputs, each with the next token as its label. Rows
// in which no label counts are left out.
class RowsDataset final : public Dataset {
 public:
  // Throws UserError if there is no row.
  RowsDataset(std::shared_ptr<const IndexedDataset> tokens, const RowsDatasetOptions& options);

  int64_t seq_length() const override { return options_.longest; }
  int64_t size() const override { return int64_t(rows_.size()); }
  bool packed() const override { return true; }
  bool fixed_length() const override { return false; }
  void sample(int64_t index, Sample& out) const override;
  std::string note() const override;

 private:
  struct Row {
    int64_t first, length;  // inputs [first, first + length) of the stream of tokens
  };

  std::shared_ptr<const IndexedDataset> tokens_;
  RowsDatasetOptions options_;
  std::vector<Row> rows_;
  int64_t inputs_ = 0, longest_ = 0, cut_ = 0, unlabelled_ = 0;
};

// Returns the inputs of the longest document of a token set.
int64_t longest_row(const IndexedDataset& tokens);

}  // namespace mtrain::data
