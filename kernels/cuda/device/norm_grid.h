// Grids of the norms, which may leave multiprocessors to other work. Nothing of CUDA is in here.
#pragma once
#include <algorithm>
#include <cstdint>

namespace mtrain::kernels::cuda {

// Rows, of `threads` each, that are at work at once where `margin` of the multiprocessors are left
// to others. One is always used.
inline int64_t norm_rows_at_once(int64_t threads, int64_t multiprocessors, int64_t margin) {
  constexpr int64_t kThreadsEach = 768;
  return std::max<int64_t>(1, multiprocessors - margin) * ((kThreadsEach + threads - 1) / threads);
}

}  // namespace mtrain::kernels::cuda
