#include "model/memory.h"

#include <algorithm>

#include "base/math.h"

namespace mtrain {

namespace {

// Bytes that one layer keeps per token from forward to backward: see AttentionActivations and
// MlpActivations.
int64_t kept_per_token(const GptConfig& c, int64_t element, bool recompute_core) {
  const int64_t H = c.hidden, AD = c.heads * c.head_dim;
  const int64_t attention =
      H /*sum*/ + c.qkv_width() * (c.qk_norm ? 2 : 1) + (recompute_core ? 0 : AD);
  const int64_t mlp = H + c.ffn * (c.gated_mlp ? 2 : 1);
  const int64_t statistics = 2 * (c.norm == ops::NormKind::layer ? 2 : 1) +
                             (recompute_core ? 0 : c.heads) +
                             (c.qk_norm ? c.heads + c.kv_heads : 0);
  return (attention + mlp) * element + statistics * 4;
}

// Bytes that live only while one layer runs backward, per token: gradients of its widest
// activations.
int64_t passing_per_token(const GptConfig& c, int64_t element) {
  const int64_t mlp = c.ffn * (c.gated_mlp ? 3 : 2) + 2 * c.hidden;
  const int64_t attention = c.qkv_width() + 2 * c.heads * c.head_dim + 2 * c.hidden;
  return std::max(mlp, attention) * element;
}

}  // namespace

MemoryEstimate estimate_memory(const GptConfig& c, DType compute, int64_t T, const Recompute& r) {
  const int64_t element = dtype_size(compute), n = count_params(c).total,
                layer = kept_per_token(c, element, r.attention_core);
  const int64_t recomputed = r.group ? std::min(c.layers, r.layers) : 0,
                groups = r.group ? ceil_div(recomputed, r.group) : 0;
  MemoryEstimate m{};
  m.params = n * element;
  m.grads = n * 4;
  m.optimizer = n * (compute == DType::f32 ? 8 : 12);
  const int64_t kept =
      (c.layers - recomputed) * layer + groups * c.hidden * element + r.group * layer;
  const int64_t head = 2 * c.hidden * element + 4;
  const int64_t logits = Head::logits_chunk_rows(c, T) * c.padded_vocab * element;
  // The head's logits are gone before the layers run backward.
  m.activations = T * (kept + head) + std::max(logits, T * passing_per_token(c, element));
  return m;
}

}  // namespace mtrain
