#include "data/dataset/rows_dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "data/dataset/permutation.h"

namespace mtrain::data {

RowsDataset::RowsDataset(std::shared_ptr<const IndexedDataset> tokens,
                         const RowsDatasetOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  const TokenIndex& index = tokens_->index();
  for (int64_t d = 0; d < index.documents(); ++d) {
    const int64_t begin = index.document_begin(d), inputs = index.document_begin(d + 1) - begin - 1;
    const int64_t length = std::min(inputs, options_.longest);
    if (length < 1 || !tokens_->any_counts(begin + 1, length)) {
      ++unlabelled_;
      continue;
    }
    cut_ += length < inputs;
    inputs_ += length;
    longest_ = std::max(longest_, length);
    rows_.push_back({begin, length});
  }
  if (rows_.empty())
    throw UserError(fmt::format("{} has no row in which a label counts", tokens_->name()),
                    "raise dataset.seq_length, or check which text counts as an answer");
}

std::string RowsDataset::note() const {
  std::string text =
      fmt::format("{}: {} rows, {:.1f} tokens on average, the longest {}", tokens_->name(), size(),
                  double(inputs_) / double(size()), longest_);
  if (cut_) text += fmt::format("; {} cut at {} tokens", cut_, options_.longest);
  if (unlabelled_) text += fmt::format("; {} left out, since no label counts", unlabelled_);
  return text;
}

void RowsDataset::sample(int64_t index, Sample& out) const {
  MT_CHECK(index >= 0, "sample {}", index);
  const int64_t epoch = index / size(), i = index % size();
  const uint64_t key = rng_key(options_.seed + uint64_t(epoch) * 0x9E3779B97F4A7C15ull, "epoch");
  const Row& row = rows_[size_t(options_.shuffle ? Permutation(key, size())(i) : i)];
  std::vector<int32_t> read(size_t(row.length) + 1);
  tokens_->read(row.first, read);
  options_.ids.check(read, *tokens_, row.first, index);
  out.input.assign(read.begin(), read.end() - 1);
  out.label.clear(), out.position.clear();
  for (int64_t s = 0; s < row.length; ++s) {
    out.label.push_back(tokens_->counts(row.first + s + 1) ? read[size_t(s) + 1] : -1);
    out.position.push_back(int32_t(s));
  }
  out.documents = {row.length};
  out.padding = 0;
}

int64_t longest_row(const IndexedDataset& tokens) {
  const TokenIndex& index = tokens.index();
  int64_t longest = 0;
  for (int64_t d = 0; d < index.documents(); ++d)
    longest = std::max(longest, index.document_begin(d + 1) - index.document_begin(d) - 1);
  return longest;
}

}  // namespace mtrain::data
