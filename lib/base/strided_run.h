// Elements of a tensor in row-major order: runs of equal length, at equal distances. A part of the
// columns of a matrix is one of them, and so is a plain range of elements.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain {

struct StridedRun {
  int64_t first = 0;   // the first element
  int64_t count = 0;   // elements of each run
  int64_t times = 1;   // number of runs
  int64_t stride = 0;  // from the start of a run to that of the next; 0 if there is one run

  int64_t total() const { return count * times; }
  // The element that follows the last one.
  int64_t end() const { return first + (times - 1) * stride + count; }
  bool operator==(const StridedRun&) const = default;
};

// Returns elements [begin, begin + count) of those of `run`, as at most three runs.
std::vector<StridedRun> part_of(const StridedRun& run, int64_t begin, int64_t count);

}  // namespace mtrain
