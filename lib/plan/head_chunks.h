// How context parallelism cuts a rank's attention heads into chunks, so that one chunk travels
// while another is computed.
#pragma once
#include <cstdint>

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct Layout;

// The number of equal chunks for so many kv heads on a rank. Nothing can overlap where it is 1.
constexpr int64_t head_chunks(int64_t kv_heads) {
  constexpr int64_t kEnough = 4;  // a quarter of what travels is waited for
  for (int64_t p = kEnough; p > 1; --p)
    if (kv_heads % p == 0) return p;
  for (int64_t p = kEnough + 1; p < kv_heads; ++p)
    if (kv_heads % p == 0) return p;
  return kv_heads;
}

// all_gather cuts the kv heads of a rank of tp; a2a cuts those that a rank has once positions are
// exchanged for heads. 1 where no layer communicates that way.
struct HeadChunks {
  int64_t all_gather = 1, a2a = 1;
};

// A pure function of the recipe and the layout.
HeadChunks resolve_head_chunks(const recipe::Recipe& recipe, const Layout& layout);

}  // namespace mtrain::plan
