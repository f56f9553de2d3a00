// This operation has no vector file, since the C library's memcpy picks the widest instructions
// itself.
#include "kernels/copy_blocks.h"

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/cpu/check.h"

namespace mtrain::kernels::cpu {
namespace {

void check_block(const CopyBlocks& a, const CopyBlock& b) {
  const auto inside = [&](int64_t row, int64_t column, int64_t width, int64_t count) {
    return row >= 0 && column >= 0 && column + b.columns <= width &&
           (row + b.rows) * width <= count;
  };
  MT_CHECK(b.rows >= 0 && b.columns >= 0 &&
               inside(b.from_row, b.from_column, a.from_width, a.from.count) &&
               inside(b.to_row, b.to_column, a.to_width, a.to.count),
           "copy blocks: {} x {} from ({}, {}) of {} / {} to ({}, {}) of {} / {}", b.rows,
           b.columns, b.from_row, b.from_column, a.from.count, a.from_width, b.to_row, b.to_column,
           a.to.count, a.to_width);
}

}  // namespace

void run(const CopyBlocks& a) {
  check_dtype("copy blocks", "to", a.to, a.from.dtype);
  for (const CopyBlock& b : a.blocks) check_block(a, b);
  const int64_t size = dtype_size(a.from.dtype);
  const auto copy_rows = [&](const CopyBlock& b, int64_t begin, int64_t end) {
    const char* from =
        a.from.as<char>() + ((b.from_row + begin) * a.from_width + b.from_column) * size;
    char* to = a.to.as<char>() + ((b.to_row + begin) * a.to_width + b.to_column) * size;
    if (b.columns == a.from_width && b.columns == a.to_width) {
      std::memcpy(to, from, size_t((end - begin) * b.columns * size));
      return;
    }
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to, from, size_t(b.columns * size));
      from += a.from_width * size;
      to += a.to_width * size;
    }
  };
  // The rows of all blocks form one range: threads then share many small blocks as evenly as few
  // large ones.
  std::vector<int64_t> ends;
  int64_t rows = 0, bytes = 0;
  for (const CopyBlock& b : a.blocks) {
    ends.push_back(rows += b.rows);
    bytes += b.rows * b.columns * size;
  }
  if (bytes == 0) return;
  constexpr int64_t kGrain = 1 << 17;  // bytes per chunk: enough work to justify waking a thread
  parallel_for(rows, std::max<int64_t>(1, rows * kGrain / bytes), [&](int64_t begin, int64_t end) {
    size_t i = size_t(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    while (begin < end) {
      const int64_t first = ends[i] - a.blocks[i].rows, last = std::min(end, ends[i]);
      copy_rows(a.blocks[i], begin - first, last - first);
      begin = last;
      ++i;
    }
  });
}

}  // namespace mtrain::kernels::cpu
