// How tensor parallelism spreads a parameter over ranks. Checkpoints and initial values know the
// layout-free tensor alone: its rows without padding, all of its columns.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::model {

struct ShardSpec {
  enum class Dim { none, rows, columns };
  // Neighbouring rows of the layout-free tensor: units of `width` rows, between which it is cut.
  // Every rank has equally many of them; where there are fewer units than ranks, consecutive ranks
  // hold a copy of the same one.
  struct Section {
    int64_t units, width;
    int64_t rows_here(int ranks) const;
  };

  int ranks = 1, rank = 0;
  Dim dim = Dim::none;            // none: every rank has all of it
  std::vector<Section> sections;  // of Dim::rows; a rank's rows of them follow each other
  // Ranks that hold the same element each have a part of its gradient, which is their sum; else
  // all have the whole.
  bool partial_grad = false;
};

// Neighbouring rows of a rank's tensor, from `here` on, that are neighbours in the layout-free one,
// too, from `whole` on. `copies` consecutive ranks hold them, this one as number `copy`.
struct RowShard {
  int64_t here, whole, count;
  int replicas, replica;
};

// The real rows of a rank in the order of its tensor; `rows`: of the layout-free tensor.
std::vector<RowShard> rows_of(const ShardSpec& shard, int64_t rows, int rank);

// Neighbouring elements of both tensors.
struct ElementRun {
  int64_t here, whole, count;
  int replica;  // as in RowShard
};
// `columns`: of the rank's tensor.
std::vector<ElementRun> runs_of(const ShardSpec& shard, int64_t rows, int64_t columns, int rank);

}  // namespace mtrain::model
