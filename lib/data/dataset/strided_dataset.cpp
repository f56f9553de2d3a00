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
    throw UserError(fmt::format("the stride is {}, and a window has {} tokens", options_.stride, S),
                    "a stride is at least 1 and at most a window");
  if (N < 2 || S < 2)
    throw UserError(fmt::format("{} has {} tokens, and a window {}", tokens_->name(), N, S),
                    "a loss needs two tokens or more");
  size_ = N <= S ? 1 : ceil_div(N - S, options_.stride) + 1;
  if (!tokens_->masked()) return;
  for (int64_t i = 0; i < size_; ++i) {
    const auto [first, end] = counted(i);
    if (tokens_->any_counts(first, end - first)) return;
  }
  throw UserError(fmt::format("no token of {} counts as a label", tokens_->name()),
                  "build the data set with answers");
}

std::pair<int64_t, int64_t> StridedDataset::counted(int64_t index) const {
  const int64_t S = options_.window, begin = index * options_.stride;
  const int64_t end = std::min(begin + S, tokens_->tokens());
  const int64_t seen = index > 0 ? begin - options_.stride + S : 0;  // where the last window ends
  return {std::min(std::max(begin + 1, seen), end), end};
}

void StridedDataset::sample(int64_t index, Sample& out) const {
  MT_CHECK(index >= 0, "sample {}", index);
  const int64_t S = options_.window, begin = index % size_ * options_.stride;
  const int64_t count = std::min(S, tokens_->tokens() - begin);
  const auto [first, end] = counted(index % size_);
  out.input.assign(size_t(S), 0);
  tokens_->read(begin, std::span(out.input).first(size_t(count)));
  for (int64_t s = 0; s < count; ++s) {
    const int32_t token = out.input[size_t(s)];
    if (token < 0 || (options_.vocab_size > 0 && token >= options_.vocab_size))
      throw UserError(fmt::format("token {} of {} has the id {}, but the vocabulary has {}",
                                  begin + s, tokens_->name(), token, options_.vocab_size),
                      "evaluate with the tokenizer of the model");
  }
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
