// A data set that packs several documents into each sample. Every document is a sequence of its
// own: its positions count from 0, and it does not attend to the others.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/packing_strategy.h"
#include "data/dataset/dataset.h"
#include "data/dataset/id_check.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {

struct PackedDatasetOptions {
  int64_t size = 0;  // tokens per sample
  uint64_t seed = 0;
  bool shuffle = true;     // false: samples in their order, epoch after epoch
  bool drop_long = false;  // leaves out documents that are too long, instead of splitting them
  PackingStrategy strategy = PackingStrategy::first_fit;
  int64_t max_packs = 0;  // the packs after the first `max_packs` are left out; 0: none is
  // Gives each piece a sample of its own, with Sample::documents empty, for models that do not
  // support packs.
  bool alone = false;
  IdCheck ids = {};  // for every token that is read, including masked ones
};

// A document of n tokens gives n - 1 inputs, each with the next token as its label. If these do not
// fit into a sample, the document is split into pieces. Packs do not depend on the seed and the
// layout, and a pack holds its pieces in the order of the packing strategy. A document of masked
// tokens fills the rest of a sample. Pieces in which no label counts are left out.
class PackedDataset final : public Dataset {
 public:
  // Throws UserError if there is no document to pack.
  PackedDataset(std::shared_ptr<const IndexedDataset> tokens, const PackedDatasetOptions& options);

  int64_t seq_length() const override { return options_.size; }
  int64_t size() const override { return int64_t(packs_.size()); }
  bool packed() const override { return !options_.alone; }
  void sample(int64_t index, Sample& out) const override;
  std::string note() const override;

 private:
  struct Piece {
    int64_t first, length;  // inputs [first, first + length) of the stream of tokens
  };
  void limit_packs();
  void add_piece(const Piece& piece, int64_t index, Sample& out) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  PackedDatasetOptions options_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<int64_t>> packs_;  // indices into pieces_ for each pack
  int64_t inputs_ = 0, split_ = 0, dropped_ = 0, packs_left_out_ = 0;
  int64_t unlabelled_ = 0;  // pieces that are left out because no label counts
};

}  // namespace mtrain::data
