// How expert and tensor parallelism spread a parameter over ranks: whole experts first, then parts
// of what a rank of expert parallelism has. Checkpoints and initial values know only
// the layout-free tensor, which has all columns and all rows without padding.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::model {

// The first dimension counts experts, of which each of `ranks` has as many.
struct ExpertShard {
  int ranks = 1, rank = 0;
};

struct ShardSpec {
  enum class Dim { none, rows, columns };
  // A range of rows of the layout-free tensor (the queries of a qkv, say): `units` units of `width`
  // rows each, such as heads. Every rank gets the same number of whole units. If there are fewer
  // units than ranks, consecutive ranks hold replicas of the same unit.
  struct Section {
    int64_t units, width;
    int64_t rows_here(int ranks) const;  // rows of the section on each rank
  };

  int ranks = 1, rank = 0;
  Dim dim = Dim::none;  // none: every rank has the whole tensor
  // The sections of Dim::rows. A rank's tensor has its rows of one section after the other.
  std::vector<Section> sections;
  // Whether the gradient of an element is a sum over the ranks that hold it, each of which computes
  // a part. Otherwise each of these ranks computes the whole.
  bool partial_grad = false;
};

// `count` consecutive rows: rows `here`, `here` + 1, ... of a rank's tensor are rows `full`,
// `full` + 1, ... of the layout-free tensor. `replicas` consecutive ranks hold them; this rank is
// number `replica` of these.
struct RowShard {
  int64_t here, full, count;
  int replicas, replica;
};

// Returns the real rows of a rank in the order of its tensor. `rows` counts those of the
// layout-free tensor.
std::vector<RowShard> rows_of(const ShardSpec& shard, int64_t rows, int rank);

// As RowShard, for `count` consecutive elements.
struct ElementRun {
  int64_t here, full, count;
  int replica;  // as in RowShard
  bool operator==(const ElementRun&) const = default;
};
// Returns the real elements of a rank. `rows` is as in rows_of(); `columns` counts those of the
// rank's tensor.
std::vector<ElementRun> runs_of(const ShardSpec& shard, int64_t rows, int64_t columns, int rank);

}  // namespace mtrain::model
