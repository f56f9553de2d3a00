#include "data/dataset/packed_dataset.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "data/dataset/packing.h"
#include "data/dataset/permutation.h"

namespace mtrain::data {

PackedDataset::PackedDataset(std::shared_ptr<const IndexedDataset> tokens,
                             const PackedDatasetOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  const TokenIndex& index = tokens_->index();
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < index.documents(); ++d) {
    const int64_t begin = index.document_begin(d), inputs = index.document_begin(d + 1) - begin - 1;
    if (inputs > options_.size && options_.drop_long) {
      ++dropped_;
      continue;
    }
    split_ += inputs > options_.size;
    for (int64_t at = 0; at < inputs; at += options_.size) {
      const int64_t length = std::min(options_.size, inputs - at);
      if (!tokens_->any_counts(begin + at + 1, length)) {
        ++unlabelled_;
        continue;
      }
      lengths.push_back(length);
      pieces_.push_back({begin + at, length});
      inputs_ += length;
    }
  }
  if (pieces_.empty())
    throw UserError(fmt::format("{} has no document of 2 to {} tokens{} to pack", tokens_->name(),
                                options_.size + 1, unlabelled_ ? " in which a label counts" : ""),
                    "raise packed_sequence.packed_sequence_size, or set drop_long_samples: false");
  if (!options_.alone) {
    packs_ = pack(options_.strategy, lengths, options_.size);
    limit_packs();
    return;
  }
  for (int64_t piece = 0; piece < int64_t(pieces_.size()); ++piece) packs_.push_back({piece});
}

void PackedDataset::limit_packs() {
  packs_left_out_ = options_.max_packs > 0 ? std::max<int64_t>(0, size() - options_.max_packs) : 0;
  packs_.resize(packs_.size() - size_t(packs_left_out_));
  if (packs_left_out_ == 0) return;
  inputs_ = 0;
  for (const std::vector<int64_t>& pieces : packs_)
    for (const int64_t piece : pieces) inputs_ += pieces_[size_t(piece)].length;
}

std::string PackedDataset::note() const {
  std::string text =
      fmt::format("{}: {} documents in {} samples of {}, {:.1f} % full", tokens_->name(),
                  tokens_->index().documents(), size(), options_.size,
                  100 * double(inputs_) / double(options_.size) / double(size()));
  if (split_) text += fmt::format("; {} split", split_);
  if (tokens_->masked()) text += "; masked";
  if (unlabelled_) text += fmt::format("; {} pieces left out, since no label counts", unlabelled_);
  if (dropped_) text += fmt::format("; {} left out, since they are longer", dropped_);
  if (packs_left_out_)
    text += fmt::format("; {} further packs left out by max_packs", packs_left_out_);
  return text;
}

void PackedDataset::sample(int64_t index, Sample& out) const {
  MT_CHECK(index >= 0, "sample {}", index);
  const int64_t epoch = index / size(), i = index % size();
  const uint64_t key = rng_key(options_.seed + uint64_t(epoch) * 0x9E3779B97F4A7C15ull, "epoch");
  out.input.clear(), out.label.clear(), out.position.clear(), out.documents.clear();
  out.padding = 0;
  for (const int64_t piece : packs_[size_t(options_.shuffle ? Permutation(key, size())(i) : i)])
    add_piece(pieces_[size_t(piece)], index, out);
  const int64_t rest = options_.size - int64_t(out.input.size());
  if (options_.alone)
    out.documents.clear();
  else if (rest > 0)
    out.documents.push_back(rest);
  out.padding = rest;
  out.input.resize(size_t(options_.size), 0);
  out.label.resize(size_t(options_.size), -1);
  out.position.resize(size_t(options_.size));
  std::iota(out.position.end() - rest, out.position.end(), 0);
}

void PackedDataset::add_piece(const Piece& piece, int64_t index, Sample& out) const {
  std::vector<int32_t> read(size_t(piece.length) + 1);
  tokens_->read(piece.first, read);
  options_.ids.check(read, *tokens_, piece.first, index);
  out.documents.push_back(piece.length);
  out.input.insert(out.input.end(), read.begin(), read.end() - 1);
  for (size_t i = 1; i < read.size(); ++i)
    out.label.push_back(tokens_->counts(piece.first + int64_t(i)) ? read[i] : -1);
  for (int64_t s = 0; s < piece.length; ++s) out.position.push_back(int32_t(s));
}

}  // namespace mtrain::data
