// What attention's vector files need of the calling thread, as plain functions (see simd.h).
#pragma once
#include <cstdint>

namespace mtrain {
int current_threads();  // base/thread_pool.h, which includes the standard library
}

namespace mtrain::kernels::cpu {

// Memory of the calling thread, kept between calls and aligned to 64 bytes; a later call of the
// thread may move it.
float* thread_scratch(int64_t floats);

}  // namespace mtrain::kernels::cpu
