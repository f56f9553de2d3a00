#include "model/cut.h"

#include <algorithm>

#include "base/math.h"

namespace mtrain {

int64_t Cut::Section::rows_here(int ranks) const {
  return units < ranks ? width : exact_div(units, int64_t(ranks)) * width;
}

std::vector<CutRows> rows_of(const Cut& cut, int64_t rows, int rank) {
  if (cut.dim == Cut::Dim::none) return {{0, 0, rows, cut.ranks, rank}};
  if (cut.dim == Cut::Dim::columns) return {{0, 0, rows, 1, 0}};
  std::vector<CutRows> out;
  int64_t here = 0, first = 0;
  for (const Cut::Section& s : cut.sections) {
    const int copies = s.units < cut.ranks ? int(exact_div(int64_t(cut.ranks), s.units)) : 1;
    const int64_t count = s.rows_here(cut.ranks), begin = first + rank / copies * count,
                  real = std::clamp<int64_t>(rows - begin, 0, count);
    if (real > 0) out.push_back({here, begin, real, copies, rank % copies});
    here += count;
    first += s.units * s.width;
  }
  return out;
}

std::vector<ElementRun> runs_of(const Cut& cut, int64_t rows, int64_t columns, int rank) {
  std::vector<ElementRun> out;
  for (const CutRows& r : rows_of(cut, rows, rank)) {
    if (cut.dim != Cut::Dim::columns) {
      out.push_back({r.here * columns, r.whole * columns, r.count * columns, r.copy});
      continue;
    }
    for (int64_t i = 0; i < r.count; ++i)
      out.push_back(
          {(r.here + i) * columns, ((r.whole + i) * cut.ranks + rank) * columns, columns, r.copy});
  }
  return out;
}

}  // namespace mtrain
