// The exchange of positions for heads, and back. Before it a rank has all heads of its own
// positions; after it the rank has some heads of the positions of all ranks of the group, in the
// sequence's order.
#pragma once
#include <vector>

#include "comm/group.h"
#include "ops/blocks.h"
#include "parallel/context/context_comm.h"
#include "parallel/context/sequence.h"

namespace mtrain::parallel {

// The settings of both directions. The heads travel in `pieces` pieces: a rank computes with one
// while others travel.
struct HeadExchange {
  ContextComm& comm;
  const Group& group;
  int64_t pieces;
  ContextSequence seq;  // how the sequences are distributed over the group's ranks

  int64_t parts() const { return pieces * group.size(); }  // parts that heads are split into
  int64_t rows() const { return seq.T() * group.size(); }  // positions of all ranks together
  // Returns the blocks that copy a piece, `width` columns wide, from the order in which rows arrive
  // (rank by rank) to the order of the sequence.
  std::vector<ops::CopyBlock> order(int64_t width) const;
};

// Exchanges positions for heads. `sections` are column counts of x_TN, each of which is split by
// heads: {A * D, G * D, G * D} for a qkv.
class SequenceToHeads {
 public:
  SequenceToHeads(const HeadExchange& exchange, Stream& compute, const Tensor& x_TN,
                  const std::vector<int64_t>& sections);
  // Returns piece `p` (rows, N / parts). Call it for all pieces in their order.
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
  // Sends piece `p`, whose shape is that of SequenceToHeads::piece().
  void put(int64_t p, const Tensor& x);
  // Returns (T, N). Call it after put() of all pieces.
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
