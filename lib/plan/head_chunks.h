// Decides into how many chunks context parallelism divides a rank's attention heads. One chunk
// travels while another is computed.
#pragma once
#include <cstdint>

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct Layout;

// Returns the number of equal chunks for `kv_heads` kv heads on a rank. If it is 1, nothing
// overlaps.
constexpr int64_t head_chunks(int64_t kv_heads) {
  constexpr int64_t kEnough = 4;  // compute waits for a quarter of the transfers
  for (int64_t p = kEnough; p > 1; --p)
    if (kv_heads % p == 0) return p;
  for (int64_t p = kEnough + 1; p < kv_heads; ++p)
    if (kv_heads % p == 0) return p;
  return kv_heads;
}

// Chunks of the kv heads, by cp_comm_type; 1 if no layer has that type.
struct HeadChunks {
  int64_t all_gather = 1;  // chunks of a tp rank's kv heads
  int64_t a2a = 1;         // chunks of the kv heads that a rank has after the all-to-all
};

// This is a pure function of the recipe and the layout.
HeadChunks resolve_head_chunks(const recipe::Recipe& recipe, const Layout& layout);

}  // namespace mtrain::plan
