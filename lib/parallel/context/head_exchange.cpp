#include "parallel/context/head_exchange.h"

#include <numeric>

#include "base/math.h"
#include "ops/blocks.h"

namespace mtrain::parallel {

std::vector<ops::CopyBlock> HeadExchange::order(int64_t width) const {
  std::vector<int64_t> documents = seq.documents;
  if (documents.empty()) documents = {rows()};
  return ops::balanced_to_sequence(documents, group.size(), width);
}

SequenceToHeads::SequenceToHeads(const HeadExchange& e, Stream& compute, const Tensor& x_TN,
                                 const std::vector<int64_t>& sections)
    : exchange_(e), compute_(compute) {
  const int64_t width = exact_div(x_TN.dim(1), e.parts());
  const Shape all{e.pieces * e.rows(), width};
  const Tensor sent = e.comm.named_buffer(compute, ContextBuffer::to_heads_sent, all, x_TN.dtype());
  received_ = e.comm.named_buffer(compute, ContextBuffer::to_heads_received, all, x_TN.dtype());
  // Part p * ranks + r has the heads of piece p for rank r.
  ops::copy_blocks(compute, x_TN, sent, ops::split_columns(e.seq.T(), sections, e.parts()));
  for (int64_t p = 0; p < e.pieces; ++p) {
    const int64_t begin = p * e.rows(), end = begin + e.rows();
    arrived_.push_back(e.comm.enqueue(compute, [&](Stream& stream) {
      e.group.all_to_all(sent.rows(begin, end), received_.rows(begin, end), stream);
    }));
  }
}

Tensor SequenceToHeads::piece(int64_t p) {
  compute_.wait(arrived_[size_t(p)]);  // edge: the piece's arrival -> its use
  const int64_t rows = exchange_.rows(), width = received_.dim(1);
  const Tensor x = Tensor::empty(compute_, {rows, width}, received_.dtype());
  ops::copy_blocks(compute_, received_.rows(p * rows, (p + 1) * rows), x, exchange_.order(width));
  return x;
}

HeadsToSequence::HeadsToSequence(const HeadExchange& e, Stream& compute,
                                 std::vector<int64_t> sections, DType dtype)
    : exchange_(e),
      compute_(compute),
      sections_(std::move(sections)),
      N_(std::accumulate(sections_.begin(), sections_.end(), int64_t(0))) {
  const Shape all{e.pieces * e.rows(), exact_div(N_, e.parts())};
  sent_ = e.comm.named_buffer(compute, ContextBuffer::to_sequence_sent, all, dtype);
  received_ = e.comm.named_buffer(compute, ContextBuffer::to_sequence_received, all, dtype);
}

void HeadsToSequence::put(int64_t p, const Tensor& x) {
  ops::copy_blocks(compute_, x, piece_of(sent_, p), ops::inverse(exchange_.order(x.dim(1))));
  arrived_ = exchange_.comm.enqueue(compute_, [&](Stream& stream) {
    exchange_.group.all_to_all(piece_of(sent_, p), piece_of(received_, p), stream);
  });
}

Tensor HeadsToSequence::finish() {
  compute_.wait(arrived_);  // edge: the last piece's arrival, after all others -> their use
  const int64_t T = exchange_.seq.T();
  const Tensor x = Tensor::empty(compute_, {T, N_}, received_.dtype());
  ops::copy_blocks(compute_, received_, x,
                   ops::inverse(ops::split_columns(T, sections_, exchange_.parts())));
  return x;
}

}  // namespace mtrain::parallel
