// Grids of the norms, which may reserve multiprocessors for other work. This header includes no
// CUDA header.
#pragma once
#include <algorithm>
#include <cstdint>

namespace mtrain::kernels::cuda {

// Returns how many rows, of `threads` threads each, run at once if `margin` multiprocessors are
// reserved for other work. At least one multiprocessor is used.
inline int64_t norm_rows_at_once(int64_t threads, int64_t multiprocessors, int64_t margin) {
  constexpr int64_t kThreadsEach = 768;
  return std::max<int64_t>(1, multiprocessors - margin) * ((kThreadsEach + threads - 1) / threads);
}

}  // namespace mtrain::kernels::cuda
