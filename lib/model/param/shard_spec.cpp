#include "model/param/shard_spec.h"

#include <algorithm>

#include "base/math.h"

namespace mtrain::model {

int64_t ShardSpec::Section::rows_here(int ranks) const {
  return units < ranks ? width : exact_div(units, int64_t(ranks)) * width;
}

std::vector<RowShard> rows_of(const ShardSpec& shard, int64_t rows, int rank) {
  if (shard.dim == ShardSpec::Dim::none) return {{0, 0, rows, shard.ranks, rank}};
  if (shard.dim == ShardSpec::Dim::columns) return {{0, 0, rows, 1, 0}};
  std::vector<RowShard> out;
  int64_t here = 0, first = 0;
  for (const ShardSpec::Section& s : shard.sections) {
    const int replicas = s.units < shard.ranks ? int(exact_div(int64_t(shard.ranks), s.units)) : 1;
    const int64_t count = s.rows_here(shard.ranks), begin = first + rank / replicas * count,
                  real = std::clamp<int64_t>(rows - begin, 0, count);
    if (real > 0) out.push_back({here, begin, real, replicas, rank % replicas});
    here += count;
    first += s.units * s.width;
  }
  return out;
}

std::vector<ElementRun> runs_of(const ShardSpec& shard, int64_t rows, int64_t columns, int rank) {
  std::vector<ElementRun> out;
  for (const RowShard& r : rows_of(shard, rows, rank)) {
    if (shard.dim != ShardSpec::Dim::columns) {
      out.push_back({r.here * columns, r.full * columns, r.count * columns, r.replica});
      continue;
    }
    for (int64_t i = 0; i < r.count; ++i)
      out.push_back({(r.here + i) * columns, ((r.full + i) * shard.ranks + rank) * columns, columns,
                     r.replica});
  }
  return out;
}

}  // namespace mtrain::model
