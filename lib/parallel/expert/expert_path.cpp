#include "parallel/expert/expert_path.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "ops/blocks.h"

namespace mtrain::parallel {

using model::ExpertRows;

ExpertPath expert_path(const ExpertComm& comm, int64_t begin, int64_t end, const RowsOf& rows) {
  const int64_t ranks = comm.ranks(), tp = comm.tp();
  ExpertPath path{.first = {0}};
  // An expert's rows are in the order of the ranks of ep, then of tp, then of the tokens.
  std::vector<int64_t> starts{0};
  for (int64_t e = begin; e < end; ++e) {
    for (int64_t from = 0; from < ranks; ++from)
      for (int64_t t = 0; t < tp; ++t)
        starts.push_back(starts.back() + rows(from, t, comm.rank(), e));
    path.first.push_back(narrow<int32_t>(starts.back()));
  }
  path.rows = starts.back();
  RowCounts& travelling = path.travelling;
  travelling.sends.assign(size_t(ranks), 0), travelling.receives.assign(size_t(ranks), 0);
  std::vector<int64_t> of_part(static_cast<size_t>(tp));
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t e = begin; e < end; ++e) {
      travelling.sends[size_t(rank)] += rows(comm.rank(), comm.tp_rank(), rank, e);
      travelling.receives[size_t(rank)] += rows(rank, comm.tp_rank(), comm.rank(), e);
      for (int64_t t = 0; t < tp; ++t) of_part[size_t(t)] += rows(rank, t, comm.rank(), e);
    }
  travelling.each = *std::ranges::max_element(of_part);
  path.in_order = end - begin == 1 && tp == 1;
  for (int64_t t = 0; !path.in_order && t < tp; ++t) {
    int64_t at = t * travelling.each;
    for (int64_t from = 0; from < ranks; ++from)
      for (int64_t e = begin; e < end; ++e) {
        const int64_t n = rows(from, t, comm.rank(), e);
        if (n > 0)
          path.to_experts.push_back(
              {.from_row = at,
               .from_column = 0,
               .to_row = starts[size_t(((e - begin) * ranks + from) * tp + t)],
               .to_column = 0,
               .rows = n,
               .columns = 0});
        at += n;
      }
  }
  return path;
}

void copy_rows(Stream& compute, const ExpertRows& rows, std::vector<ops::CopyBlock> blocks,
               const ExpertRows& to) {
  const auto copy = [&](const Tensor& from, const Tensor& t, int64_t width) {
    for (ops::CopyBlock& b : blocks) b.columns = width;
    ops::copy_blocks(compute, from.view({from.dim(0), width}), t.view({t.dim(0), width}), blocks);
  };
  copy(rows.x_RH, to.x_RH, rows.x_RH.dim(1));
  if (rows.weight_R) copy(rows.weight_R, to.weight_R, 1);
}

ExpertRows copied(Stream& compute, const ExpertRows& rows, std::vector<ops::CopyBlock> blocks,
                  int64_t count) {
  ExpertRows to{.x_RH = Tensor::empty(compute, {count, rows.x_RH.dim(1)}, rows.x_RH.dtype())};
  if (rows.weight_R) to.weight_R = Tensor::empty(compute, {count}, rows.weight_R.dtype());
  copy_rows(compute, rows, std::move(blocks), to);
  return to;
}

ExpertRows by_arrival(Stream& compute, const ExpertComm& comm, const ExpertPath& path,
                      ExpertRows rows) {
  if (path.in_order) return rows;
  return copied(compute, rows, ops::inverse(path.to_experts), comm.arriving(path.travelling));
}

}  // namespace mtrain::parallel
