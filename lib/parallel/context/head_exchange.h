// The exchange of positions for heads. A rank has all heads of its own positions, and gets some
// heads of the positions of all ranks of the group, in the sequence's order; and the exchange back.
#pragma once
#include <vector>

#include "comm/group.h"
#include "parallel/context/context_comm.h"
#include "parallel/context/sequence.h"

namespace mtrain::parallel {

// What both directions need to know. The heads travel in `pieces`, so that a rank computes with one
// while others travel.
struct HeadExchange {
  ContextComm& comm;
  const Group& group;
  int64_t pieces;
  ContextSequence seq;  // over the group's ranks

  int64_t parts() const { return pieces * group.size(); }  // into so many parts heads are split
  int64_t rows() const { return seq.T() * group.size(); }  // so many positions all ranks have
  // The blocks that bring the rows of a piece from rank after rank into the sequence's order.
  std::vector<ops::CopyBlock> order(int64_t width) const;
};

// Exchanges positions for heads. `sections` are the column counts of x_TN that are split by heads
// each: {A * D, G * D, G * D} for a qkv.
class SequenceToHeads {
 public:
  SequenceToHeads(const HeadExchange& exchange, Stream& compute, const Tensor& x_TN,
                  const std::vector<int64_t>& sections);
  // Returns (rows, N / parts). Pieces are asked for in their order.
  Tensor piece(int64_t p);

 private:
  const HeadExchange& exchange_;
  Stream& compute_;
  Tensor received_;
  std::vector<Event> arrived_;
};

// Exchanges heads for positions.
class HeadsToSequence {
 public:
  HeadsToSequence(const HeadExchange& exchange, Stream& compute, std::vector<int64_t> sections,
                  DType dtype);
  // Sends piece `p`, which has the shape that SequenceToHeads::piece() returns.
  void put(int64_t p, const Tensor& x);
  // Returns (T, N), after all pieces were put.
  Tensor finish();

 private:
  Tensor piece_of(const Tensor& all, int64_t p) const {
    return all.rows(p * exchange_.rows(), (p + 1) * exchange_.rows());
  }
  const HeadExchange& exchange_;
  Stream& compute_;
  const std::vector<int64_t> sections_;
  int64_t N_ = 0;
  Tensor sent_, received_;
  Event arrived_;
};

}  // namespace mtrain::parallel
