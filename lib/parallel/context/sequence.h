// How a micro-batch's positions are distributed over the ranks of context parallelism. Every
// document, or the one sequence, is split into 2 * ranks chunks. Rank r holds the chunks r and
// 2 * ranks - 1 - r: all ranks then have the same work under a causal mask.
#pragma once
#include <vector>

#include "model/attention_core.h"
#include "ops/attention_block.h"

namespace mtrain::parallel {

// A micro-batch's sequences over the ranks of one group.
struct ContextSequence {
  int64_t B, S;                    // sequences, and the positions of each on this rank
  std::vector<int64_t> documents;  // their lengths on all ranks together; empty: no documents

  int64_t T() const { return B * S; }
};

// The rows at which the two chunks of every document begin and end on a rank, in the form that
// attention blocks take.
class DocumentChunks {
 public:
  // Uploads the rows, unless the documents are those of the last call. `ranks` is the group's size.
  void set(Stream& compute, const ContextSequence& seq, int64_t ranks);
  // False if the sequence has no documents.
  explicit operator bool() const { return bool(begin_); }
  ops::Documents first() const { return {begin_, mid_}; }
  ops::Documents second() const { return {mid_, end_}; }
  ops::Documents both() const { return {begin_, end_}; }

 private:
  std::vector<int64_t> documents_;
  int64_t ranks_ = 0;
  Tensor begin_, mid_, end_;
};

// Uploads row numbers as int32.
Tensor row_numbers(Stream& compute, const std::vector<int64_t>& rows);

// Writes x_TM into the columns of into_TN that start at `column`; casts it if the types differ.
void put_columns(Stream& compute, const Tensor& x_TM, const Tensor& into_TN, int64_t column);

}  // namespace mtrain::parallel
