// Plain functions through which attention's vector files use the calling thread's pool and memory
// (see simd.h).
#pragma once
#include <cstdint>

namespace mtrain {
int current_threads();  // base/thread_pool.h, which includes the standard library
}

namespace mtrain::kernels::cpu {

// Returns memory of the calling thread, aligned to 64 bytes and kept between calls. A later call on
// the same thread may move it.
float* thread_scratch(int64_t floats);

}  // namespace mtrain::kernels::cpu
