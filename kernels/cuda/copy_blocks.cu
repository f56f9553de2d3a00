#include "kernels/copy_blocks.h"

#include <numeric>

#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

struct Rectangle {  // in units of the copy
  int64_t from, to, rows, columns;
};
// This struct is passed as an argument of the kernel: no host memory must outlive the launch.
constexpr int kRectangles = 64;
struct Rectangles {
  Rectangle at[kRectangles];
};

template <class Unit>
__global__ void copy(const Unit* from, Unit* to, int64_t from_width, int64_t to_width,
                     Rectangles rectangles) {
  const Rectangle r = rectangles.at[blockIdx.y];
  const int64_t step = int64_t(gridDim.x) * blockDim.y;
  for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < r.rows; row += step) {
    const Unit* const source = from + r.from + row * from_width;
    Unit* const target = to + r.to + row * to_width;
    for (int64_t c = threadIdx.x; c < r.columns; c += blockDim.x) target[c] = source[c];
  }
}

template <class Unit>
void copy_all(const CopyBlocks& a, int64_t size, CUstream_st* stream) {
  const auto units = [&](int64_t elements) { return elements * size / int64_t(sizeof(Unit)); };
  for (size_t first = 0; first < a.blocks.size(); first += kRectangles) {
    const size_t n = std::min<size_t>(kRectangles, a.blocks.size() - first);
    Rectangles rectangles{};
    int64_t columns = 0, rows = 0;
    for (size_t i = 0; i < n; ++i) {
      const CopyBlock& b = a.blocks[first + i];
      rectangles.at[i] = {units(b.from_row * a.from_width + b.from_column),
                          units(b.to_row * a.to_width + b.to_column), b.rows, units(b.columns)};
      columns = std::max(columns, rectangles.at[i].columns);
      rows = std::max(rows, b.rows);
    }
    if (columns == 0 || rows == 0) continue;
    unsigned x = 1;
    while (int64_t(x) < columns && x < unsigned(kFlatThreads)) x *= 2;
    const unsigned y = unsigned(kFlatThreads) / x;
    MT_LAUNCH((copy<Unit>), dim3(blocks_for(rows, y), unsigned(n)), dim3(x, y), 0, stream,
              data<Unit>(a.from), data<Unit>(a.to), units(a.from_width), units(a.to_width),
              rectangles);
  }
}

}  // namespace

void run(const CopyBlocks& a, CUstream_st* stream) {
  // The unit of the copy is the largest one that divides all bounds.
  const int64_t size = dtype_size(a.from.dtype);
  int64_t unit = std::gcd(a.from_width * size, a.to_width * size);
  const auto divide = [&](int64_t bytes) { unit = std::gcd(unit, bytes); };
  divide(16);
  divide(int64_t(reinterpret_cast<uintptr_t>(a.from.data) % 16));
  divide(int64_t(reinterpret_cast<uintptr_t>(a.to.data) % 16));
  for (const CopyBlock& b : a.blocks) {
    divide(b.from_column * size);
    divide(b.to_column * size);
    divide(b.columns * size);
  }
  switch (unit) {
    case 16: return copy_all<uint4>(a, size, stream);
    case 8: return copy_all<uint2>(a, size, stream);
    case 4: return copy_all<uint32_t>(a, size, stream);
    case 2: return copy_all<uint16_t>(a, size, stream);
    default: return copy_all<uint8_t>(a, size, stream);
  }
}

}  // namespace mtrain::kernels::cuda
