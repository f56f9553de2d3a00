// What a GPT is, resolved: no field here has an "auto". lib/train makes it from the model of the
// plan.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/norm.h"

namespace mtrain::model {

struct RopeScaling {
  enum class Kind { none, linear, llama3 } kind = Kind::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_positions = 8192;
};

struct GptConfig {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn;
  int64_t vocab;  // true vocabulary
  int64_t
      padded_vocab;  // rows of the embedding; the rows from `vocab` on stay zero and take no part
  int64_t max_positions;  // rows of the learned position table
  kernels::NormKind norm = kernels::NormKind::rms;
  float norm_eps = 1e-5f;
  bool rotary = true;  // else learned positions
  double rotary_base = 10000;
  RopeScaling rope_scaling;
  bool gated_mlp = true;  // SwiGLU; else GELU
  bool gelu_tanh = true;
  bool qkv_bias = false,
       linear_bias = false;  // linear_bias: all other linears, and the layer norms
  bool qk_norm = false;
  bool tied_embeddings = false;
  int64_t window = 0;  // sliding-window attention; 0: none
  float hidden_dropout = 0, embedding_dropout = 0;
  float init_std = 0.02f;

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

}  // namespace mtrain::model
