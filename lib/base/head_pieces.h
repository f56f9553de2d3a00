// How attention's heads are cut where they travel: context parallelism and the plan of its memory
// agree on it.
#pragma once
#include <cstdint>

namespace mtrain {

// How many parts all_gather and a2a cut their heads into, so that one travels while another is
// computed; `kv_heads` of one rank. Nothing can overlap where that is 1.
constexpr int64_t head_pieces(int64_t kv_heads) {
  constexpr int64_t kEnough = 4;  // a quarter of what travels is waited for
  for (int64_t p = kEnough; p > 1; --p)
    if (kv_heads % p == 0) return p;
  for (int64_t p = kEnough + 1; p < kv_heads; ++p)
    if (kv_heads % p == 0) return p;
  return kv_heads;
}

}  // namespace mtrain
