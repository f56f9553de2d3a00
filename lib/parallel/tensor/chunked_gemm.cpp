#include "parallel/tensor/chunked_gemm.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"

namespace mtrain::parallel {

namespace {

using Kind = comm::Transfer::Kind;

// Returns the rows of rank `rank` of `ranks`. `rank` is taken modulo `ranks`, and may be negative.
Tensor chunk(const Tensor& x, int rank, int ranks) {
  const int64_t rows = exact_div(x.dim(0), int64_t(ranks));
  const int at = (rank % ranks + ranks) % ranks;
  return x.rows(at * rows, (at + 1) * rows);
}

// Returns the sum of every rank's rows, added in the order of ranks, in fp32.
Tensor sum_of_parts(Stream& stream, const Tensor& parts_TO, int ranks) {
  const auto part = [&](int rank) { return chunk(parts_TO, rank, ranks); };
  if (parts_TO.dtype() == DType::f32) {
    for (int rank = 1; rank + 1 < ranks; ++rank) ops::add_into(stream, part(rank), part(0));
    return ops::add(stream, part(0), part(ranks - 1));
  }
  const Tensor sum = Tensor::empty(stream, part(0).shape(), DType::f32),
               out = Tensor::empty(stream, part(0).shape(), parts_TO.dtype());
  ops::cast(stream, part(0), sum);
  for (int rank = 1; rank < ranks; ++rank) ops::add_into(stream, part(rank), sum);
  ops::cast(stream, sum, out);
  return out;
}

}  // namespace

GatheredGemm all_gather_gemm_ring(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                  bool aggregate, const RowGemm& gemm, bool keep_gathered) {
  const int P = comm.size(), r = comm.rank(), step = aggregate ? 2 : 1, hops = P / step;
  const int64_t T = x_TI.dim(0) * P;
  Stream& compute = comm.compute();
  const Tensor all = Tensor::empty(compute, {T, x_TI.dim(1)}, x_TI.dtype()),
               y = Tensor::empty(compute, {T, O}, x_TI.dtype());
  // A chunk has the rows of `step` ranks. `mine` is the chunk that has this rank's rows.
  const int mine = r / step;
  const auto rows = [&](const Tensor& t, int i) { return chunk(t, i, hops); };
  if (aggregate || keep_gathered) ops::cast(compute, x_TI, chunk(all, r, P));
  comm.after_compute();  // edge: this rank's rows -> their sends
  Event neighbour;
  if (aggregate) {
    comm.all().exchange({{Kind::send, x_TI, r ^ 1}, {Kind::receive, chunk(all, r ^ 1, P), r ^ 1}},
                        comm.stream());
    neighbour = comm.stream().record();
  }
  std::vector<Event> arrived;
  for (int i = 1; i < hops; ++i) {
    const Tensor next = i == 1 && !aggregate ? x_TI : rows(all, mine - i + 1);
    comm.all().exchange({{Kind::send, next, (r + step) % P},
                         {Kind::receive, rows(all, mine - i), (r - step + P) % P}},
                        comm.stream());
    arrived.push_back(comm.stream().record());
  }
  compute.wait(neighbour);  // edge: the neighbour's rows -> the GEMM of the first chunk
  gemm(aggregate ? rows(all, mine) : x_TI, rows(y, mine));
  for (int i = 1; i < hops; ++i) {
    compute.wait(arrived[size_t(i - 1)]);  // edge: the chunk's arrival -> its GEMM
    gemm(rows(all, mine - i), rows(y, mine - i));
  }
  return {y, keep_gathered ? all : Tensor()};
}

Tensor gemm_reduce_scatter_ring(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                const RowGemm& gemm) {
  const int P = comm.size(), r = comm.rank();
  const int64_t T = x_TI.dim(0);
  Stream& compute = comm.compute();
  // `parts` collects the results of all ranks for this rank's rows. `out` has this rank's results
  // for the rows of the other ranks.
  const Tensor parts = Tensor::empty(compute, {T, O}, x_TI.dtype()),
               out = Tensor::empty(compute, {T, O}, x_TI.dtype());
  for (int i = 1; i < P; ++i) {
    const int to = (r + i) % P, from = (r - i + P) % P;
    gemm(chunk(x_TI, to, P), chunk(out, to, P));
    comm.after_compute();  // edge: the chunk's GEMM -> its send
    comm.all().exchange(
        {{Kind::send, chunk(out, to, P), to}, {Kind::receive, chunk(parts, from, P), from}},
        comm.stream());
  }
  gemm(chunk(x_TI, r, P), chunk(parts, r, P));
  comm.before_compute();  // edge: the arrival of all parts -> their sum
  return sum_of_parts(compute, parts, P);
}

Tensor gemm_reduce_scatter_pipelined(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                     int64_t splits, int64_t rows_multiple, const RowGemm& gemm) {
  const int P = comm.size();
  const int64_t T = x_TI.dim(0), I = x_TI.dim(1), own = exact_div(T, int64_t(P));
  // A split has `unit` rows of each rank, or a multiple. A divisor of both T = P * own and
  // P * rows_multiple divides P * unit, too.
  const int64_t unit = std::gcd(own, rows_multiple), units = own / unit,
                n = std::min(splits, units);
  Stream& compute = comm.compute();
  const Tensor in = Tensor::empty(compute, {T, I}, x_TI.dtype()),
               out = Tensor::empty(compute, {T, O}, x_TI.dtype()),
               result = Tensor::empty(compute, {own, O}, x_TI.dtype());
  const auto first = [&](int64_t split) { return unit * part_begin(units, n, split); };
  // Orders the rows by split, and within a split by rank. A split has the same part of every rank's
  // rows.
  std::vector<ops::CopyBlock> blocks;
  for (int64_t split = 0; split < n; ++split)
    for (int64_t rank = 0; rank < P; ++rank) {
      const int64_t rows = first(split + 1) - first(split);
      blocks.push_back({.from_row = rank * own + first(split),
                        .from_column = 0,
                        .to_row = P * first(split) + rank * rows,
                        .to_column = 0,
                        .rows = rows,
                        .columns = I});
    }
  ops::copy_blocks(compute, x_TI, in, std::move(blocks));
  for (int64_t split = 0; split < n; ++split) {
    const int64_t begin = first(split), end = first(split + 1);
    gemm(in.rows(P * begin, P * end), out.rows(P * begin, P * end));
    comm.after_compute();  // edge: the chunk's GEMM -> its sum
    comm.all().reduce_scatter(out.rows(P * begin, P * end), result.rows(begin, end),
                              comm::Reduce::sum, comm.stream());
  }
  comm.before_compute();
  return result;
}

}  // namespace mtrain::parallel
