#include "parallel/context/sequence.h"

#include "base/math.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"

namespace mtrain::parallel {

void DocumentChunks::set(Stream& compute, const ContextSequence& seq, int64_t ranks) {
  if (seq.documents == documents_ && ranks == ranks_) return;
  documents_ = seq.documents;
  ranks_ = ranks;
  begin_ = mid_ = end_ = {};
  if (documents_.empty()) return;
  std::vector<int64_t> begin, mid, end;
  int64_t at = 0;
  for (const int64_t length : documents_) {
    const int64_t chunk = exact_div(length, 2 * ranks);
    begin.push_back(at);
    mid.push_back(at + chunk);
    end.push_back(at += 2 * chunk);
  }
  MT_CHECK(at == seq.S, "documents have {} positions on a rank whose sequence has {}", at, seq.S);
  begin_ = row_numbers(compute, begin);
  mid_ = row_numbers(compute, mid);
  end_ = row_numbers(compute, end);
}

Tensor row_numbers(Stream& compute, const std::vector<int64_t>& rows) {
  std::vector<int32_t> narrow;
  for (const int64_t row : rows) narrow.push_back(mtrain::narrow<int32_t>(row));
  return Tensor::from_host(compute, {int64_t(rows.size())}, std::move(narrow));
}

void put_columns(Stream& compute, const Tensor& x_TM, const Tensor& into_TN, int64_t column) {
  ops::put_columns(compute, ops::in_dtype(compute, x_TM, into_TN.dtype()), into_TN, column);
}

}  // namespace mtrain::parallel
