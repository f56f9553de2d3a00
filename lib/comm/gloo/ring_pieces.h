// The pieces of a ring in the order in which every rank sends and receives them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/math.h"

namespace mtrain::comm {

// A ring goes in steps. In each step every rank sends a shard to the next rank and gets another one
// from the rank before, which it sends in the step after. Shards go in pairs of segments, so that
// one segment is under way while the other is reduced. A pair goes through all steps before the
// next pair begins, so that few segments are held at a time. The data that comes as piece i goes
// out as piece i + 2.
class RingPieces {
 public:
  // `most` is the largest number of elements of a piece.
  RingPieces(int64_t count, int ranks, int64_t most)
      : count_(count),
        ranks_(ranks),
        segment_(std::clamp(ceil_div(ceil_div(count, ranks), 2), int64_t(1), most)) {}

  int64_t segment() const { return segment_; }  // elements of the longest piece
  int64_t pieces() const {
    return ceil_div(ceil_div(count_, ranks_), 2 * segment_) * (ranks_ - 1) * 2;
  }
  int step(int64_t i) const { return int(i / 2 % (ranks_ - 1)); }
  // Where piece i begins in its shard, and how many elements it has: none, in a short shard's last
  // ones.
  int64_t first(int64_t i) const { return (i / 2 / (ranks_ - 1) * 2 + i % 2) * segment_; }
  int64_t elements(int64_t i, int shard) const {
    const int64_t all = part_begin(count_, ranks_, shard + 1) - part_begin(count_, ranks_, shard);
    return std::clamp<int64_t>(all - first(i), 0, segment_);
  }

 private:
  int64_t count_, ranks_, segment_;
};

}  // namespace mtrain::comm
