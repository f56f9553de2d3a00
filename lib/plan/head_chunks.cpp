#include "plan/head_chunks.h"

#include <algorithm>

#include "plan/layout.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

HeadChunks resolve_head_chunks(const Recipe& r, const Layout& l) {
  HeadChunks chunks;
  if (l.cp == 1) return chunks;
  const int64_t kv_heads = std::max<int64_t>(1, r.model.kv_heads() / l.tp);
  for (const ContextMethod type : r.distributed.cp_comm_type) {
    if (type == ContextMethod::all_gather) chunks.all_gather = head_chunks(kv_heads);
    if (type == ContextMethod::a2a) chunks.a2a = head_chunks(std::max<int64_t>(1, kv_heads / l.cp));
  }
  return chunks;
}

}  // namespace mtrain::plan
