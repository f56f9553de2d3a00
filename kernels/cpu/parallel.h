// What the vector files need of the standard library, as plain functions. parallel_for takes a
// function pointer here, since std::function's members are inline functions that every file shares,
// and the linker might keep the copy that was compiled for a wider instruction set (see simd.h).
#pragma once
#include <cstdint>

namespace mtrain::kernels::cpu {

using ChunkFunction = void (*)(const void* context, int64_t begin, int64_t end);

// fn(context, begin, end) over [0, n) in chunks fixed by n and grain alone (base/thread_pool.h).
// One chunk runs in place.
void parallel_chunks(int64_t n, int64_t grain, const void* context, ChunkFunction fn);

// Memory on a cache line's boundary; bytes may be 0. Throws std::bad_alloc.
void* allocate_scratch(int64_t bytes);
void free_scratch(void* p);

}  // namespace mtrain::kernels::cpu
