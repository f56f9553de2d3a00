// Documents packed into samples of one length; each is a sequence of its own, with positions from 0
// on and no sight of the others.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset/dataset.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct PackedDatasetOptions {
  int64_t size = 0;  // tokens of a sample
  uint64_t seed = 0;
  bool shuffle = true;     // the samples; false: in order, epoch after epoch
  bool drop_long = false;  // leaves out documents that do not fit, instead of splitting them
  int64_t vocab_size = 0;  // > 0: a token at or above it is a UserError
};

// A document of n tokens gives n - 1 inputs, each with the next token as its label, and is split
// where these are more than a sample has. Pieces are packed in the order of the stream, whatever
// the seed and the layout; the rest of a sample is a document of masked tokens.
class PackedDataset final : public Dataset {
 public:
  // Throws UserError where there is nothing to pack.
  PackedDataset(std::shared_ptr<const IndexedDataset> tokens, const PackedDatasetOptions& options);

  int64_t seq_length() const override { return options_.size; }
  int64_t size() const override { return int64_t(packs_.size()); }
  void sample(int64_t index, Sample& out) const override;
  std::string note() const override;

 private:
  struct Piece {
    int64_t first, length;  // of the inputs, in the stream of tokens
  };
  void add_piece(const Piece& piece, Sample& out) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  PackedDatasetOptions options_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<int64_t>> packs_;  // of pieces
  int64_t inputs_ = 0, split_ = 0, dropped_ = 0;
};

}  // namespace mtrain::data
