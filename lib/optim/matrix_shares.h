// Computes which ranks have which elements of a weight matrix. Data, tensor and expert parallelism
// split parameters at any element; an optimizer that needs full matrices finds their parts here.
// This is arithmetic without communication: every rank computes it for all ranks that have the same
// parameters.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/param/parameters.h"

namespace mtrain::optim {

// One weight of the model: consecutive rows of the layout-free tensor. The weights that are stacked
// in a tensor (q, k and v; gate and up) are separate matrices, as are those of each expert. A
// matrix contains no padding.
struct Matrix {
  int64_t expert = 0;  // index of the first dimension, if the tensor has three
  int64_t row = 0;     // the first of its rows in the tensor, or in the expert's part of it
  int64_t rows = 0, columns = 0;
  int64_t column = 0;  // the first of its columns in the tensor
};
std::vector<Matrix> matrices_of(const model::ParamSpec& p);
// Returns the part of each weight that a rank of tensor parallelism has, as a matrix. Ranks with
// the same rows of a weight share one matrix.
std::vector<Matrix> shard_matrices_of(const model::ParamSpec& p);

// The place of a rank among those that divide a parameter. Ranks with equal places have the same
// elements.
struct Place {
  int shard = 0;   // ParamSpec::shard, of tensor parallelism
  int expert = 0;  // ParamSpec::experts
  int data = 0;    // the unit's Sharding
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm of clang-tidy 14
  auto operator<=>(const Place&) const = default;
};
Place place_of(const model::Parameter& p);

// A rectangle of a matrix whose elements are neighbours in the unit of the rank that owns them.
struct Tile {
  int64_t in_unit;  // its first element in the unit
  int64_t row, column, rows, columns;
  bool copy;  // whether a lower rank of tensor parallelism has the same elements
  int64_t count() const { return rows * columns; }
};
// Returns what the optimizer of a rank at this place owns of a matrix.
std::vector<Tile> tiles_of(const model::Parameter& p, const Matrix& m, const Place& place);

// Returns the rank that works on each matrix. The matrices with the most work are assigned first,
// each to the rank that would finish it earliest, or to the first of several such ranks.
// `moves(i, rank)` is the time that matrix i needs to reach `rank`, in the unit of `work`.
std::vector<int> balanced_owners(const std::vector<double>& work, int ranks,
                                 const std::function<double(size_t i, int rank)>& moves);

}  // namespace mtrain::optim
