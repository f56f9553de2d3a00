#include "data/dataset/gpt_dataset.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "data/dataset/permutation.h"

namespace mtrain::data {

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> tokens,
                       const GptDatasetOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  const int64_t S = options_.seq_length;
  if (S < 1)
    throw UserError(fmt::format("the sequence length is {}", S),
                    "set dataset.seq_length to 1 or more");
  size_ = (tokens_->tokens() - 1) / S;
  if (tokens_->tokens() <= S)
    throw UserError(
        fmt::format("a sequence of {} tokens and its last label need {} tokens, but {} has {}", S,
                    S + 1, tokens_->name(), tokens_->tokens()),
        "shorten dataset.seq_length or build a larger data set");
  if (!tokens_->masked()) return;
  for (int64_t j = 0; j < size_; ++j)
    if (tokens_->any_counts(j * S + 1, S)) kept_.push_back(j);
  left_out_ = size_ - int64_t(kept_.size());
  size_ = int64_t(kept_.size());
  if (size_ == 0)
    throw UserError(
        fmt::format("{} has no sequence of {} tokens in which a label counts", tokens_->name(), S),
        "lengthen dataset.seq_length, or build the data set with answers");
}

std::string GptDataset::note() const {
  if (!tokens_->masked()) return "";
  return fmt::format(
      "{}: masked; {} sequences of {}{}", tokens_->name(), size_, options_.seq_length,
      left_out_ ? fmt::format(", {} left out, since no label counts", left_out_) : "");
}

void GptDataset::sample(int64_t index, Sample& out) const {
  MT_CHECK(index >= 0, "sample {}", index);
  const int64_t S = options_.seq_length, epoch = index / size_, i = index % size_;
  const uint64_t key = rng_key(options_.seed + uint64_t(epoch) * 0x9E3779B97F4A7C15ull, "epoch");
  const int64_t j = options_.shuffle ? Permutation(key, size_)(i) : i,
                first = S * (kept_.empty() ? j : kept_[size_t(j)]);

  out.input.resize(size_t(S) + 1);
  tokens_->read(first, out.input);
  options_.ids.check(out.input, *tokens_, first, index);
  out.label.assign(out.input.begin() + 1, out.input.end());
  if (tokens_->masked())
    for (int64_t s = 0; s < S; ++s)
      if (!tokens_->counts(first + s + 1)) out.label[size_t(s)] = -1;
  out.input.pop_back();
  out.position.resize(size_t(S));
  std::iota(out.position.begin(), out.position.end(), 0);
  if (options_.mask_document_ends || options_.reset_positions) walk_documents(first, out);
}

void GptDataset::walk_documents(int64_t first, Sample& out) const {
  const TokenIndex& index = tokens_->index();
  const int64_t S = options_.seq_length;
  for (int64_t document = index.document_of(first) + 1; document < index.documents(); ++document) {
    const int64_t begin = index.document_begin(document) - first;  // position within the sequence
    if (begin > S) break;
    if (begin <= 0) continue;
    if (options_.mask_document_ends) out.label[size_t(begin - 1)] = -1;
    if (options_.reset_positions) std::iota(out.position.begin() + begin, out.position.end(), 0);
  }
}

}  // namespace mtrain::data
