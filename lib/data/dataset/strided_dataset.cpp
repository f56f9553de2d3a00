#include "data/dataset/strided_dataset.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::data {

StridedDataset::StridedDataset(std::shared_ptr<const IndexedDataset> tokens,
                               const StridedDatasetOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  const int64_t S = options_.window, N = tokens_->tokens();
  if (options_.stride < 1 || options_.stride > S)
    throw UserError(fmt::format("the stride is {}, but a window has {} tokens", options_.stride, S),
                    "a stride is at least 1 and at most the length of a window");
  if (N < 2 || S < 2)
    throw UserError(fmt::format("{} has {} tokens, and a window {}", tokens_->name(), N, S),
                    "a loss needs two tokens or more");
  const auto windows_of = [&](int64_t count) {
    return count <= S ? 1 : ceil_div(count - S, options_.stride) + 1;
  };
  bool any = false;
  if (options_.by_document) {
    const TokenIndex& index = tokens_->index();
    for (int64_t d = 0; d < index.documents(); ++d) {
      const int64_t begin = index.document_begin(d), end = index.document_begin(d + 1);
      for (int64_t i = 0; i < windows_of(end - begin); ++i) {
        const Window window{begin + i * options_.stride, begin, end};
        const auto [first, last] = label_range(window);
        if (first < last && tokens_->any_counts(first, last - first)) windows_.push_back(window);
      }
    }
    size_ = int64_t(windows_.size());
    any = size_ > 0;
  } else {
    size_ = windows_of(N);
    for (int64_t i = 0; i < size_ && !any; ++i) {
      const auto [first, last] = label_range(i);
      any = tokens_->any_counts(first, last - first);
    }
  }
  if (!any)
    throw UserError(fmt::format("no token of {} counts as a label", tokens_->name()),
                    "build the data set with answers");
}

StridedDataset::Window StridedDataset::window(int64_t index) const {
  if (options_.by_document) return windows_[size_t(index)];
  return {index * options_.stride, 0, tokens_->tokens()};
}

std::pair<int64_t, int64_t> StridedDataset::label_range(const Window& w) const {
  const int64_t S = options_.window, end = std::min(w.begin + S, w.document_end);
  // The end of the window before this one; 0 for a document's first.
  const int64_t seen = w.begin > w.document_begin ? w.begin - options_.stride + S : 0;
  return {std::min(std::max(w.begin + 1, seen), end), end};
}

std::pair<int64_t, int64_t> StridedDataset::label_range(int64_t index) const {
  return label_range(window(index));
}

void StridedDataset::sample(int64_t index, Sample& out) const {
  MT_CHECK(index >= 0, "sample {}", index);
  const Window w = window(index % size_);
  const int64_t S = options_.window, begin = w.begin;
  const int64_t count = std::min(S, w.document_end - begin);
  const auto [first, end] = label_range(w);
  out.input.assign(size_t(S), 0);
  const auto read = std::span(out.input).first(size_t(count));
  tokens_->read(begin, read);
  options_.ids.check(read, *tokens_, begin, index);
  out.label.assign(size_t(S), -1);
  for (int64_t t = first; t < end; ++t)
    if (tokens_->counts(t)) out.label[size_t(t - 1 - begin)] = out.input[size_t(t - begin)];
  out.position.resize(size_t(S));
  std::iota(out.position.begin(), out.position.end(), 0);
  out.documents.clear();
  if (options_.packed) out.documents = {S};
  out.padding = S - count;
}

}  // namespace mtrain::data
