// What attention's vector files need of the calling thread, as plain functions (see simd.h).
#pragma once
#include <cstdint>

namespace mtrain::kernels::cpu {

// Memory of the calling thread, kept between calls and aligned to 64 bytes; a later call of the
// thread may move it.
float* thread_scratch(int64_t floats);

int64_t pool_threads();  // of the current pool

}  // namespace mtrain::kernels::cpu
