// Tests GEMMs in chunks of rows: what they compute, and how many rows a chunk has.
#include <algorithm>
#include <vector>

#include <fmt/core.h>

#include <catch2/catch.hpp>

#include "ops/elementwise.h"
#include "parallel/tensor/chunked_gemm.h"
#include "test/support/comm_testing.h"

namespace parallel_chunked_gemm_test {

using namespace mtrain;
using namespace mtrain::parallel;

namespace {

struct Scattered {
  std::vector<double> rows;     // of each rank, one after another
  std::vector<int64_t> chunks;  // rows of the GEMMs of rank 0
};

// Scatters the sums of a "GEMM" that copies its input. Element i of rank r's input is i + 1000 r.
Scattered scattered(int ranks, int64_t T, int64_t splits, int64_t rows_multiple) {
  constexpr int64_t kWidth = 2;
  std::vector<std::vector<double>> parts(static_cast<size_t>(ranks));
  Scattered result;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    Stream& compute = rank.device.stream(device::StreamKind::compute);
    std::vector<int> all;
    for (int r = 0; r < ranks; ++r) all.push_back(r);
    const TensorComm comm({.all = rank.world.group("tp", all),
                           .replicas = {},
                           .compute = &compute,
                           .stream = &rank.device.stream(device::StreamKind::tp)});
    std::vector<float> values(size_t(T * kWidth));
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(i) + 1000 * float(rank.rank());
    const Tensor x = Tensor::from_host(compute, {T, kWidth}, values);
    const Tensor sum = gemm_reduce_scatter_pipelined(comm, x, kWidth, splits, rows_multiple,
                                                     [&](const Tensor& in, const Tensor& out) {
                                                       if (rank.rank() == 0)
                                                         result.chunks.push_back(in.dim(0));
                                                       ops::cast(compute, in, out);
                                                     });
    const std::vector<float> own = sum.to_host_float(compute);
    parts[size_t(rank.rank())].assign(own.begin(), own.end());
  });
  for (const auto& part : parts) result.rows.insert(result.rows.end(), part.begin(), part.end());
  return result;
}

}  // namespace

TEST_CASE("a pipeline of chunks sums all rows, in chunks of four rows if four divides them") {
  struct Case {
    int ranks;
    int64_t T, splits;
    std::vector<int64_t> chunks, in_fours;
  };
  for (const Case& c : std::vector<Case>{{2, 72, 5, {16, 14, 14, 14, 14}, {16, 16, 16, 16, 8}},
                                         {2, 28, 3, {10, 10, 8}, {12, 8, 8}},
                                         {2, 8, 4, {2, 2, 2, 2}, {8}},
                                         {3, 36, 5, {9, 9, 6, 6, 6}, {12, 12, 12}},
                                         {4, 24, 4, {8, 8, 4, 4}, {8, 8, 8}},
                                         {4, 12, 2, {8, 4}, {8, 4}},
                                         {2, 6, 2, {4, 2}, {4, 2}}})
    for (const int64_t rows_multiple : {1, 4}) {
      CAPTURE(c.ranks, c.T, c.splits, rows_multiple);
      const Scattered s = scattered(c.ranks, c.T, c.splits, rows_multiple);
      CHECK(s.chunks == (rows_multiple == 4 ? c.in_fours : c.chunks));
      std::vector<double> want;
      for (int64_t i = 0; i < 2 * c.T; ++i)
        want.push_back(double(c.ranks * i + 1000 * c.ranks * (c.ranks - 1) / 2));
      CHECK(s.rows == want);
    }
}

}  // namespace parallel_chunked_gemm_test
