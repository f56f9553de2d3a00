#include "model/config.h"

namespace mtrain {

ParamCount count_params(const GptConfig& c) {
  const int64_t H = c.hidden, F = c.ffn, AD = c.heads * c.head_dim;
  const bool layer_norm = c.norm == kernels::NormKind::layer;
  const int64_t norm = H * (layer_norm && c.linear_bias ? 2 : 1);
  int64_t layer = 2 * norm + c.qkv_width() * H + H * AD + (c.gated_mlp ? 3 : 2) * H * F;
  if (c.qkv_bias) layer += c.qkv_width();
  if (c.linear_bias) layer += H + (c.gated_mlp ? 2 : 1) * F + H;
  if (c.qk_norm) layer += 2 * c.head_dim;
  const int64_t table = c.vocab * H, positions = c.rotary ? 0 : c.max_positions * H;
  ParamCount n{};
  n.embedding = positions + (c.tied_embeddings ? 0 : table);
  n.total = c.layers * layer + norm + positions + table * (c.tied_embeddings ? 1 : 2);
  return n;
}

double flops_per_token(const GptConfig& c, int64_t seq_length) {
  const ParamCount n = count_params(c);
  return 6.0 * double(n.total - n.embedding) +
         12.0 * double(c.layers * c.heads * c.head_dim) * double(seq_length);
}

}  // namespace mtrain
