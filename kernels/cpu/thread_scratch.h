// Scratch memory for the vector files, which may not use Scratch's members themselves (see simd.h).
#pragma once
#include <cstdint>

namespace mtrain::kernels::cpu {

// Memory of the calling thread, kept between calls and aligned to 64 bytes; a later call of the
// thread may move it.
float* thread_scratch(int64_t floats);

}  // namespace mtrain::kernels::cpu
