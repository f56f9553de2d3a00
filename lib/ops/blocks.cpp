#include "ops/blocks.h"

#include <numeric>
#include <utility>

#include "base/math.h"
#include "kernels/copy_blocks.h"
#include "ops/enqueue.h"

MT_KERNEL(CopyBlocks)

namespace mtrain::ops {

std::vector<CopyBlock> split_columns(int64_t T, const std::vector<int64_t>& sections,
                                     int64_t parts) {
  std::vector<CopyBlock> blocks;
  for (int64_t p = 0; p < parts; ++p) {
    int64_t from = 0, to = 0;
    for (int64_t section : sections) {
      const int64_t share = exact_div(section, parts);
      blocks.push_back({.from_row = 0,
                        .from_column = from + p * share,
                        .to_row = p * T,
                        .to_column = to,
                        .rows = T,
                        .columns = share});
      from += section;
      to += share;
    }
  }
  return blocks;
}

std::vector<CopyBlock> balanced_to_sequence(const std::vector<int64_t>& documents, int64_t ranks,
                                            int64_t width) {
  const int64_t total = std::accumulate(documents.begin(), documents.end(), int64_t(0));
  const int64_t rank_rows = exact_div(total, ranks);
  std::vector<CopyBlock> blocks;
  int64_t first = 0;
  for (int64_t rows : documents) {
    const int64_t chunk = exact_div(rows, 2 * ranks);
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t from = r * rank_rows + first / ranks;
      for (const auto& [at, number] : {std::pair{from, r}, {from + chunk, 2 * ranks - 1 - r}})
        blocks.push_back({.from_row = at,
                          .from_column = 0,
                          .to_row = first + number * chunk,
                          .to_column = 0,
                          .rows = chunk,
                          .columns = width});
    }
    first += rows;
  }
  return blocks;
}

std::vector<CopyBlock> inverse(std::vector<CopyBlock> blocks) {
  for (CopyBlock& b : blocks) {
    std::swap(b.from_row, b.to_row);
    std::swap(b.from_column, b.to_column);
  }
  return blocks;
}

void copy_blocks(Stream& stream, const Tensor& from_TN, const Tensor& to_TN,
                 std::vector<CopyBlock> blocks) {
  MT_DTYPE("copy_blocks", to_TN, from_TN.dtype());
  MT_CHECK(from_TN.shape().rank() == 2 && to_TN.shape().rank() == 2, "copy_blocks: {} to {}",
           from_TN.shape().str(), to_TN.shape().str());
  int64_t copied = 0;
  for (const CopyBlock& b : blocks) copied += b.rows * b.columns;
  enqueue(stream, "copy_blocks",
          kernels::CopyBlocks{.from = from_TN,
                              .to = copied < to_TN.count() ? partly_written(to_TN) : Span(to_TN),
                              .from_width = from_TN.dim(1),
                              .to_width = to_TN.dim(1),
                              .blocks = std::move(blocks)});
}

Tensor copy_columns(Stream& stream, const Tensor& x_TN, int64_t first, int64_t count) {
  const int64_t T = x_TN.dim(0);
  Tensor columns = Tensor::empty(stream, {T, count}, x_TN.dtype());
  copy_blocks(stream, x_TN, columns, {{0, first, 0, 0, T, count}});
  return columns;
}

void put_columns(Stream& stream, const Tensor& x_TM, const Tensor& into_TN, int64_t column) {
  copy_blocks(stream, x_TM, into_TN, {{0, 0, 0, column, x_TM.dim(0), x_TM.dim(1)}});
}

}  // namespace mtrain::ops
