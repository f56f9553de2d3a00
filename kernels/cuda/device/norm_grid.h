// Grids of the norms, which may leave multiprocessors to other work. This header includes nothing
// of CUDA.
#pragma once
#include <algorithm>
#include <cstdint>

namespace mtrain::kernels::cuda {

// Returns how many rows, of `threads` threads each, run at once where `margin` multiprocessors are
// left to other work. At least one multiprocessor is used.
inline int64_t norm_rows_at_once(int64_t threads, int64_t multiprocessors, int64_t margin) {
  constexpr int64_t kThreadsEach = 768;
  return std::max<int64_t>(1, multiprocessors - margin) * ((kThreadsEach + threads - 1) / threads);
}

}  // namespace mtrain::kernels::cuda
