// The exchange of positions for heads: a rank with all heads of its own positions gets some heads
// of the positions of all ranks of the group, in the sequence's order, and the way back.
#pragma once
#include <vector>

#include "comm/group.h"
#include "parallel/context/lane.h"
#include "parallel/context/sequence.h"

namespace mtrain {

// What both ways need to know. Heads travel in `pieces`: one is computed while others travel.
struct HeadExchange {
  ContextLane& lane;
  const Group& group;
  int64_t pieces;
  ContextSequence seq;  // over the group's ranks

  int64_t parts() const { return pieces * group.size(); }  // of the heads
  int64_t rows() const { return seq.T() * group.size(); }  // of the group
  // Of a piece: rank after rank -> the sequence's order.
  std::vector<ops::CopyBlock> order(int64_t width) const;
};

// Positions to heads. `sections`: columns of x_TN that are split by heads each, {A * D, G * D,
// G * D} of a qkv.
class HeadsIn {
 public:
  HeadsIn(const HeadExchange& exchange, Stream& compute, const Tensor& x_TN,
          const std::vector<int64_t>& sections);
  Tensor piece(int64_t p);  // (rows, N / parts); in order

 private:
  const HeadExchange& exchange_;
  Stream& compute_;
  Tensor received_;
  std::vector<Event> arrived_;
};

// Heads to positions.
class HeadsOut {
 public:
  HeadsOut(const HeadExchange& exchange, Stream& compute, std::vector<int64_t> sections,
           DType dtype);
  void put(int64_t p, const Tensor& x);  // as from HeadsIn::piece
  Tensor finish();                       // (T, N), after all pieces

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

}  // namespace mtrain
