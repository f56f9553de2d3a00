#include "optim/matrix_shares.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace mtrain::optim {

std::vector<Matrix> matrices_of(const model::ParamSpec& p) {
  const Shape whole = p.full_shape();
  const int64_t experts = whole.rank() == 3 ? whole[0] : 1, rows = whole[p.row_dim()];
  const std::vector<int64_t> weights = p.stacked.empty() ? std::vector{rows} : p.stacked;
  MT_CHECK(std::accumulate(weights.begin(), weights.end(), int64_t{0}) == rows,
           "the weights stacked in {} {} have other rows", p.name, whole.str());
  std::vector<Matrix> all;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t row = 0;
    for (const int64_t n : weights) {
      all.push_back({.expert = e, .row = row, .rows = n, .columns = whole[whole.rank() - 1]});
      row += n;
    }
  }
  return all;
}

std::vector<Matrix> shard_matrices_of(const model::ParamSpec& p) {
  using Dim = model::ShardSpec::Dim;
  std::vector<Matrix> all;
  for (const Matrix& weight : matrices_of(p))
    for (int shard = 0; shard < p.shard.ranks; ++shard) {
      Matrix part = weight;
      if (p.shard.dim == Dim::columns) {
        part.columns = p.columns();
        part.column = shard * p.columns();
      } else {
        int64_t first = 0, end = 0;
        for (const model::RowShard& r : rows_of(p.shard, p.part_shape()[p.row_dim()], shard)) {
          const int64_t from = std::max(r.full, weight.row),
                        to = std::min(r.full + r.count, weight.row + weight.rows);
          if (from >= to) continue;
          MT_CHECK(end == 0 || from == end, "rank {} has no neighbouring rows of a weight in {}",
                   shard, p.name);
          if (end == 0) first = from;
          end = to;
        }
        // All of its rows are padding, or those of the rank before.
        if (end == 0 || (shard > 0 && !all.empty() && all.back().expert == weight.expert &&
                         all.back().row == first))
          continue;
        part.row = first;
        part.rows = end - first;
      }
      all.push_back(part);
    }
  return all;
}

Place place_of(const model::Parameter& p) {
  return {p.shard.rank, p.experts.rank, p.unit->sharding.rank};
}

namespace {

// Splits the elements [from, to) of a matrix with `columns` columns into rectangles: the rest of
// the first row, full rows, and the start of the last row. Calls f(its first element, row, column,
// rows, columns) for each.
template <class F>
void for_rectangles(int64_t from, int64_t to, int64_t columns, const F& f) {
  while (from < to) {
    const int64_t row = from / columns, column = from % columns;
    const int64_t rows = column ? 0 : (to - from) / columns;
    const int64_t width = rows ? columns : std::min(columns - column, to - from);
    f(from, row, column, std::max<int64_t>(rows, 1), width);
    from += std::max<int64_t>(rows, 1) * width;
  }
}

}  // namespace

std::vector<Tile> tiles_of(const model::Parameter& p, const Matrix& m, const Place& place) {
  const int64_t experts = p.matrices(), expert = m.expert - place.expert * experts;
  if (expert < 0 || expert >= experts) return {};
  const model::ParamUnit& unit = *p.unit;
  const auto piece = std::ranges::find_if(unit.pieces, [&](const model::Piece& x) {
    return p.begin >= x.begin && p.begin < x.begin + x.count;
  });
  MT_CHECK(piece != unit.pieces.end(), "{} lies in no piece of its unit", p.name);
  const int64_t share = piece->count / unit.sharding.ranks,
                owned = piece->begin + place.data * share - p.begin, owned_end = owned + share;
  const int64_t width = p.columns(), local_rows = p.shape[p.row_dim()];
  const bool by_columns = p.shard.dim == model::ShardSpec::Dim::columns;
  const int64_t first_column = by_columns ? place.shard * width : 0;
  if (first_column < m.column || first_column >= m.column + m.columns) return {};
  std::vector<Tile> tiles;
  for (const model::RowShard& r : rows_of(p.shard, p.part_shape()[p.row_dim()], place.shard)) {
    const int64_t first = std::max(r.full, m.row),
                  last = std::min(r.full + r.count, m.row + m.rows);
    if (first >= last) continue;
    // The element of the rank's tensor at which row `first` of the matrix begins.
    const int64_t begin = (expert * local_rows + r.here + first - r.full) * width,
                  end = begin + (last - first) * width;
    for_rectangles(std::max(begin, owned) - begin, std::min(end, owned_end) - begin, width,
                   [&](int64_t at, int64_t row, int64_t column, int64_t rows, int64_t columns) {
                     tiles.push_back({.in_unit = p.begin + begin + at,
                                      .row = first - m.row + row,
                                      .column = column + first_column - m.column,
                                      .rows = rows,
                                      .columns = columns,
                                      .copy = r.replica > 0});
                   });
  }
  return tiles;
}

std::vector<int> balanced_owners(const std::vector<double>& work, int ranks,
                                 const std::function<double(size_t i, int rank)>& moves) {
  std::vector<size_t> order(work.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return work[i]; });
  std::vector<int> owners(work.size());
  std::vector<double> busy(static_cast<size_t>(ranks));
  for (const size_t i : order) {
    const auto end = [&](int r) { return busy[size_t(r)] + work[i] + moves(i, r); };
    int best = 0;
    for (int r = 1; r < ranks; ++r)
      if (end(r) < end(best)) best = r;
    busy[size_t(best)] = end(best);
    owners[i] = best;
  }
  return owners;
}

}  // namespace mtrain::optim
