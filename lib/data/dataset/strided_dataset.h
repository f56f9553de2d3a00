// The windows of an evaluation: sequences that overlap, in which each token has a loss once. These
// are the strided windows of transformers' guide to perplexity.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "data/dataset/dataset.h"
#include "data/dataset/id_check.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct StridedDatasetOptions {
  int64_t window = 0;   // tokens of a window, of which the last one is only a label
  int64_t stride = 0;   // tokens from the start of a window to that of the next; at most `window`
  bool packed = false;  // a window is a sample of one document, as packed samples are
  bool by_document = false;  // windows lie within a document, and begin anew with each
  IdCheck ids = {};          // of every token that is read, also of masked ones
};

// Windows begin at every stride-th token of the stream of all documents, or of each document. A
// label has a loss if no window before has it. The first token of a window is no label, so that the
// first token of the stream has no loss; and if windows do not overlap, the first tokens of all
// windows. Of masked tokens only those have a loss that count as labels; windows of documents are
// left out where no token has a loss.
class StridedDataset final : public Dataset {
 public:
  // Throws UserError if there are fewer than two tokens, or the stride is not in [1, window], or
  // no token has a loss.
  StridedDataset(std::shared_ptr<const IndexedDataset> tokens,
                 const StridedDatasetOptions& options);

  int64_t seq_length() const override { return options_.window; }
  int64_t size() const override { return size_; }
  void sample(int64_t index, Sample& out) const override;

  // Returns the tokens [first, second) of the stream that window `index` has a loss of, as far as
  // they count as labels.
  std::pair<int64_t, int64_t> counted(int64_t index) const;

 private:
  struct Window {
    int64_t begin;                         // its first token
    int64_t document_begin, document_end;  // the tokens among which it lies
  };
  Window window(int64_t index) const;
  std::pair<int64_t, int64_t> counted(const Window& window) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  StridedDatasetOptions options_;
  std::vector<Window> windows_;  // of documents; empty for those of the stream
  int64_t size_ = 0;
};

}  // namespace mtrain::data
