// The windows of an evaluation: overlapping sequences in which each token has a loss once. These
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
  int64_t window = 0;   // tokens of a window; the last one is only a label
  int64_t stride = 0;   // tokens from the start of a window to that of the next; at most `window`
  bool packed = false;  // a window is a packed sample of one document
  bool by_document = false;  // each document has windows of its own
  IdCheck ids = {};          // for every token that is read, including masked ones
};

// Windows begin at every stride-th token of the stream of all documents, or of each document. A
// label has a loss if no earlier window has it. The first token of a window is not a label.
// Therefore the first token of the stream has no loss, nor have the first tokens of windows that do
// not overlap. If tokens are masked, only those that count as labels have a loss. A document's
// windows without a loss are left out.
class StridedDataset final : public Dataset {
 public:
  // Throws UserError if there are fewer than two tokens, or the stride is not in [1, window], or
  // no token has a loss.
  StridedDataset(std::shared_ptr<const IndexedDataset> tokens,
                 const StridedDatasetOptions& options);

  int64_t seq_length() const override { return options_.window; }
  int64_t size() const override { return size_; }
  bool packed() const override { return options_.packed; }
  void sample(int64_t index, Sample& out) const override;

  // Returns the tokens [first, second) of the stream that have a loss in window `index`, as far as
  // they count as labels.
  std::pair<int64_t, int64_t> label_range(int64_t index) const;

 private:
  struct Window {
    int64_t begin;                         // its first token
    int64_t document_begin, document_end;  // the tokens of its document, or of the stream
  };
  Window window(int64_t index) const;
  std::pair<int64_t, int64_t> label_range(const Window& window) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  StridedDatasetOptions options_;
  std::vector<Window> windows_;  // of documents; empty for those of the stream
  int64_t size_ = 0;
};

}  // namespace mtrain::data
