// The windows of an evaluation: sequences that overlap, in which each token has a loss once. These
// are the strided windows of transformers' guide to perplexity.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "data/dataset/dataset.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct StridedDatasetOptions {
  int64_t window = 0;  // tokens of a window, of which the last one is only a label
  int64_t stride = 0;  // tokens from the start of a window to that of the next; at most `window`
  int64_t vocab_size = 0;  // above 0: a token id at or above it is a UserError
  bool packed = false;     // a window is a sample of one document, as packed samples are
};

// Window i begins at token i * stride of the stream of all documents. A label has a loss if no
// window before has it. The first token of a window is no label, so that the first token of the
// stream has no loss; and if windows do not overlap, the first tokens of all windows. Of masked
// tokens only those have a loss that count as labels.
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
  const IndexedDataset& tokens() const { return *tokens_; }

 private:
  std::shared_ptr<const IndexedDataset> tokens_;
  StridedDatasetOptions options_;
  int64_t size_ = 0;
};

}  // namespace mtrain::data
