// Element i takes word i % 4 of Philox block i / 4 of its key. It is kept if the word is at least
// p * 2^32.
#include "kernels/cpu/simd.h"
#include "kernels/elementwise.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

typedef uint64_t Vq __attribute__((vector_size(kLanes * 4)));  // half as many lanes
constexpr int kBlocks = kLanes / 2;                            // Philox blocks drawn at once
constexpr int kWords = 4 * kBlocks;

// Multiplies the low halves of the lanes.
MT_INLINE Vq mul_wide(Vq a, uint32_t b) {
#if defined(__AVX512F__)
  return (Vq)_mm512_maskz_mul_epu32(0xff, (__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (Vq)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
  return (Vq)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
  return (a & 0xffffffff) * b;
#endif
}

// Computes the words of the Philox blocks counter, counter + 1, ... (Philox::block of base/rng.h),
// one block for each lane, each word in the low half.
MT_INLINE void philox(uint64_t key, uint64_t counter, uint32_t* words) {
  Vq count;
  for (int i = 0; i < kBlocks; ++i) count[i] = counter + uint64_t(i);
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  Vq x0 = count, x1 = count >> 32, x2 = Vq{}, x3 = Vq{};
  for (int round = 0; round < 10; ++round) {
    const Vq a = mul_wide(x0, 0xD2511F53u), b = mul_wide(x2, 0xCD9E8D57u);
    x0 = (b >> 32) ^ x1 ^ k0;
    x1 = b;
    x2 = (a >> 32) ^ x3 ^ k1;
    x3 = a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const Vq first = (x0 & 0xffffffff) | (x1 << 32), second = (x2 & 0xffffffff) | (x3 << 32);
  uint64_t pairs[2 * kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    pairs[2 * i] = first[i];
    pairs[2 * i + 1] = second[i];
  }
  __builtin_memcpy(words, pairs, sizeof pairs);
}

template <class T>
void drop(const T* x, T* y, int64_t begin, int64_t end, const Dropout& a, uint64_t key) {
  const uint32_t threshold = uint32_t(double(a.p) * 4294967296.0);
  const float scale = 1.0f / (1.0f - a.p);
  // A vector may be read past the last word; those lanes are not used.
  uint32_t words[kWords + kLanes] = {};
  for (int64_t i = begin; i < end;) {
    const uint64_t element = uint64_t(a.first_index) + uint64_t(i);
    const int64_t skip = int64_t(element % 4), n = min_of(kWords - skip, end - i);
    philox(key, element / 4, words);
    for_lanes(n, [&](int64_t j, auto m) {
      Vu word;
      __builtin_memcpy(&word, words + skip + j, sizeof word);
      store(y + i + j, word >= threshold ? load(x + i + j, m) * scale : splat(0.0f), m);
    });
    i += n;
  }
}

}  // namespace

void run(const Dropout& a) {
  const uint64_t key = a.key_in_memory.data ? uint64_t(*data_of<int64_t>(a.key_in_memory)) : a.key;
  with_float(a.x.dtype, [&]<class T>() {
    parallel(a.y.count, 16384, [&](int64_t begin, int64_t end) {
      drop(data_of<T>(a.x), data_of<T>(a.y), begin, end, a, key);
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
