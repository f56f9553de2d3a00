#include "data/dataset/id_check.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"

namespace mtrain::data {

IdCheck::IdCheck(int64_t rows, std::shared_ptr<const Tokenizer> tokenizer)
    : rows_(rows),
      limit_(rows > 0 ? rows : std::numeric_limits<int64_t>::max()),
      tokenizer_(std::move(tokenizer)),
      largest_(std::make_shared<std::atomic<int32_t>>(-1)) {
  if (tokenizer_) limit_ = std::min(limit_, tokenizer_->vocab_size());
}

void IdCheck::check(std::span<const int32_t> ids, const IndexedDataset& tokens, int64_t first,
                    int64_t sample) const {
  if (ids.empty()) return;
  const auto [least, most] = std::ranges::minmax(ids);
  note(most);
  if (least >= 0 && most < limit_) return;
  const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= limit_; });
  refuse(*bad, tokens, first + (bad - ids.begin()), sample);
}

void IdCheck::look_at(const IndexedDataset& tokens, int64_t sets) const {
  constexpr int64_t kRuns = 1024, kRun = 1024;
  const int64_t N = tokens.tokens(),
                runs = std::min(std::max(kRuns / sets, int64_t{1}), (N + kRun - 1) / kRun);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < runs; ++i) {
    // The last run ends with the last token; runs of a small set follow each other or overlap.
    const int64_t first =
        runs > 1 ? int64_t(double(N - kRun) * double(i) / double(runs - 1)) : int64_t{0};
    ids.resize(size_t(std::min(kRun, N - first)));
    tokens.read(first, ids);
    note(std::ranges::max(ids));
  }
}

void IdCheck::note(int32_t id) const {
  int32_t before = *largest_;
  while (before < id && !largest_->compare_exchange_weak(before, id)) continue;
}

void IdCheck::refuse(int32_t id, const IndexedDataset& tokens, int64_t token,
                     int64_t sample) const {
  const TokenIndex& index = tokens.index();
  const int64_t document = index.document_of(token);
  const std::string where = fmt::format("token {} of {} (token {} of document {}, in sample {})",
                                        index.tokens_before() + token, tokens.name(),
                                        token - index.document_begin(document),
                                        index.documents_before() + document, sample);
  if (id < 0)
    throw UserError(fmt::format("{} has an id that is negative or above 2^31", where),
                    "the file is damaged, or its type of tokens is wrong");
  const std::string has = fmt::format("{} has the {}", where, describe_id(id, tokenizer_.get()));
  if (rows_ > 0 && id >= rows_)
    throw UserError(fmt::format("{}, but the model's vocabulary has {} ids", has, rows_),
                    "build the data set with the tokenizer of the model, from texts without "
                    "tokens that the model lacks");
  throw UserError(
      fmt::format("{}, but the largest id of the tokenizer ({}) is {}", has, tokenizer_->name(),
                  tokenizer_->vocab_size() - 1),
      "name the tokenizer that built the data set: tokenizer.path of the recipe, --tokenizer of "
      "eval; NullTokenizer takes every id of the model's vocabulary");
}

std::string describe_id(int32_t id, const Tokenizer* tokenizer) {
  std::string text = fmt::format("id {}", id);
  if (!tokenizer || id < 0 || id >= tokenizer->vocab_size()) return text;
  const std::string token = tokenizer->decode({&id, 1});
  if (token.empty()) return id == tokenizer->eod() ? text + " (the end of a document)" : text;
  text += " (\"";
  for (const char c : token)
    text += c >= ' ' && c <= '~' ? std::string{c} : fmt::format("\\x{:02x}", uint8_t(c));
  return text + "\")";
}

}  // namespace mtrain::data
