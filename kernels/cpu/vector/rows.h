// Sums over rows, deterministic and parallel: the rows are split into chunks that depend only on
// the sizes, each chunk sums into its own row, and the chunks' sums are added in order.
#pragma once
#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

constexpr int64_t kMaxRowChunks = 64;         // bounds the memory of the chunks' sums
constexpr int64_t kRowChunkElements = 16384;  // a chunk takes longer than waking a thread

MT_INLINE int64_t rows_per_chunk(int64_t rows, int64_t width) {
  return max_of(1, max_of(div_up(rows, kMaxRowChunks), kRowChunkElements / max_of(width, 1)));
}

// out[i] += the chunks' sums, in the order of the chunks.
MT_INLINE void add_chunks(const float* chunk_sums, int64_t chunks, int64_t stride, int64_t width,
                          float* out) {
  parallel(width, max_of(64, kRowChunkElements / max_of(chunks, 1)),
           [=](int64_t begin, int64_t end) {
             for_lanes(end - begin, [=](int64_t j, auto m) {
               const int64_t i = begin + j;
               Vf sum = load(chunk_sums + i, m);
               for (int64_t c = 1; c < chunks; ++c) sum += load(chunk_sums + c * stride + i, m);
               store(out + i, load(out + i, m) + sum, m);
             });
           });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
