#include "parallel/expert/all_to_all_chunks.h"

#include <utility>

#include "base/math.h"
#include "ops/blocks.h"

namespace mtrain::parallel {

using model::ExpertChunk;
using model::ExpertRows;
using model::Step;

ChunkedPath chunked_path(Stream& compute, const ExpertComm& comm, int64_t chunks,
                         const RowsOf& rows) {
  const int64_t ranks = comm.ranks(), here = comm.experts_here();
  MT_CHECK(chunks <= here, "{} chunks of {} experts", chunks, here);
  ChunkedPath all;
  // The rows of expert e of rank r begin at starts[r * here + e] among those that leave.
  std::vector<int64_t> starts{0};
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t e = 0; e < here; ++e)
      starts.push_back(starts.back() + rows(comm.rank(), comm.tp_rank(), rank, e));
  std::vector<int32_t> first;  // of all chunks, in their order
  int64_t first_row = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t begin = c * here / chunks, end = (c + 1) * here / chunks;
    ChunkedPath::Chunk chunk{.path = expert_path(comm, begin, end, rows),
                             .experts = {.first_expert = begin,
                                         .experts = end - begin,
                                         .first_row = first_row,
                                         .rows = 0,
                                         .first_E1 = {}},
                             .first_leaving = all.leaving};
    chunk.experts.rows = chunk.path.rows;
    first_row += chunk.path.rows;
    first.insert(first.end(), chunk.path.first.begin(), chunk.path.first.end());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t n = chunk.path.travelling.sends[size_t(rank)];
      if (n > 0)
        all.to_chunks.push_back({.from_row = starts[size_t(rank * here + begin)],
                                 .from_column = 0,
                                 .to_row = all.leaving,
                                 .to_column = 0,
                                 .rows = n,
                                 .columns = 0});
      all.leaving += n;
    }
    all.chunks.push_back(std::move(chunk));
  }
  const auto count = int64_t(first.size());
  const Tensor firsts =
      Tensor::from_host(compute, {count}, std::move(first), device::MemoryCategory::activations);
  int64_t at = 0;
  for (ChunkedPath::Chunk& chunk : all.chunks) {
    const int64_t n = chunk.experts.experts + 1;
    chunk.experts.first_E1 = firsts.rows(at, at + n);
    at += n;
  }
  return all;
}

namespace {

class AllToAllChunks : public model::ChunkedRows {
 public:
  AllToAllChunks(Stream& compute, const ExpertComm& comm, const ChunkedPath& path,
                 const ExpertRows& rows)
      : comm_(comm),
        path_(path),
        leaving_(copied(compute, rows, path.to_chunks, path.leaving)),
        arriving_(path.chunks.size()) {}

  int64_t chunks() const override { return int64_t(path_.chunks.size()); }
  const ExpertChunk& chunk(int64_t c) const override { return path_.chunks[size_t(c)].experts; }

  void send(Step& step, int64_t c) override {
    const ChunkedPath::Chunk& chunk = path_.chunks[size_t(c)];
    arriving_[size_t(c)] =
        comm_.exchange(step.compute, leaving_part(leaving_, chunk), chunk.path.travelling);
    if (c + 1 == chunks()) leaving_ = {};
  }

  void arrive(Step& step, int64_t c, const ExpertRows& to) override {
    const ExpertPath& path = path_.chunks[size_t(c)].path;
    const ExpertRows arrived = std::exchange(arriving_[size_t(c)], {});
    step.compute.wait(arrived.ready);  // edge: a chunk's transfer -> its experts
    const ops::CopyBlock all{0, 0, 0, 0, path.rows, 0};
    copy_rows(step.compute, arrived, path.in_order ? std::vector{all} : path.to_experts, to);
  }

  void send_back(Step& step, int64_t c, const ExpertRows& rows) override {
    const ChunkedPath::Chunk& chunk = path_.chunks[size_t(c)];
    if (!returned_.x_RH) {
      returned_.x_RH =
          Tensor::empty(step.compute, {path_.leaving, rows.x_RH.dim(1)}, rows.x_RH.dtype());
      if (rows.weight_R)
        returned_.weight_R = Tensor::empty(step.compute, {path_.leaving}, rows.weight_R.dtype());
    }
    const ExpertRows back = by_arrival(step.compute, comm_, chunk.path, rows),
                     into = leaving_part(returned_, chunk);
    std::vector<Tensor> from{back.x_RH}, to{into.x_RH};
    if (back.weight_R) from.push_back(back.weight_R), to.push_back(into.weight_R);
    returned_.ready = comm_.exchange_back(step.compute.record(), from, chunk.path.travelling, to);
  }

  ExpertRows returned(Step& step) override {
    const ExpertRows rows = std::exchange(returned_, {});
    step.compute.wait(rows.ready);  // edge: the last chunk's return -> the copy into expert order
    return copied(step.compute, rows, ops::inverse(path_.to_chunks), path_.leaving);
  }

 private:
  // Returns a chunk's part of the rows that leave, or of those that have returned.
  static ExpertRows leaving_part(const ExpertRows& all, const ChunkedPath::Chunk& chunk) {
    const int64_t begin = chunk.first_leaving, end = begin + chunk.path.travelling.leaving();
    ExpertRows rows{.x_RH = all.x_RH.rows(begin, end)};
    if (all.weight_R) rows.weight_R = all.weight_R.rows(begin, end);
    return rows;
  }

  const ExpertComm& comm_;
  const ChunkedPath& path_;
  ExpertRows leaving_;                // in the order of chunks, until all have left
  std::vector<ExpertRows> arriving_;  // by chunk, between send() and arrive()
  ExpertRows returned_;               // in the order of chunks
};

}  // namespace

std::unique_ptr<model::ChunkedRows> chunked_rows(Stream& compute, const ExpertComm& comm,
                                                 const ChunkedPath& path, ExpertRows rows) {
  return std::make_unique<AllToAllChunks>(compute, comm, path, rows);
}

}  // namespace mtrain::parallel
