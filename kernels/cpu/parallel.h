// Plain functions through which the vector files use threads and memory. parallel_chunks() takes a
// function pointer and no std::function: all files share the inline members of std::function, and
// the linker might keep the copy that was compiled for a wider instruction set (see simd.h).
#pragma once
#include <cstdint>

namespace mtrain::kernels::cpu {

using ChunkFunction = void (*)(const void* context, int64_t begin, int64_t end);

// Calls fn(context, begin, end) over [0, n) in chunks that depend only on n and grain
// (base/thread_pool.h). A single chunk runs on the calling thread.
void parallel_chunks(int64_t n, int64_t grain, const void* context, ChunkFunction fn);

// Returns memory that is aligned to a cache line; bytes may be 0. Throws std::bad_alloc.
void* allocate_scratch(int64_t bytes);
void free_scratch(void* p);

}  // namespace mtrain::kernels::cpu
