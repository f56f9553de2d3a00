// The pieces of a ring collective, in the order in which every rank sends and receives them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/math.h"

namespace mtrain::comm {

// A ring runs in steps. In each step every rank sends a shard to the next rank and receives another
// one from the previous rank, which it sends in the next step. Shards are split into pairs of
// segments: one segment is in flight while the other is reduced. A pair goes through all steps
// before the next pair begins, which keeps few segments in memory. A rank sends as piece i + 2 what
// it has received as piece i.
class RingPieces {
 public:
  // `count` is the number of elements of all shards, `max_piece` the limit for one piece.
  RingPieces(int64_t count, int ranks, int64_t max_piece)
      : count_(count),
        ranks_(ranks),
        segment_(std::clamp(ceil_div(ceil_div(count, ranks), 2), int64_t(1), max_piece)) {}

  int64_t segment() const { return segment_; }  // elements of the longest piece
  int64_t pieces() const {
    return ceil_div(ceil_div(count_, ranks_), 2 * segment_) * (ranks_ - 1) * 2;
  }
  int step(int64_t i) const { return int(i / 2 % (ranks_ - 1)); }
  // Return where piece i begins in its shard, and how many elements it has. The last pieces of a
  // short shard may be empty.
  int64_t first(int64_t i) const { return (i / 2 / (ranks_ - 1) * 2 + i % 2) * segment_; }
  int64_t elements(int64_t i, int shard) const {
    const int64_t all = part_begin(count_, ranks_, shard + 1) - part_begin(count_, ranks_, shard);
    return std::clamp<int64_t>(all - first(i), 0, segment_);
  }

 private:
  int64_t count_, ranks_, segment_;
};

}  // namespace mtrain::comm
