// The shape of a GPT, with every "auto" resolved. lib/train/model_setup.cpp makes it from the plan.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "ops/experts.h"

namespace mtrain::model {

// How rotary positions reach beyond the length of the first training; model/rotary.h.
struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn, longrope } kind = Kind::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_positions = 8192;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;       // cos and sin are multiplied by it
  std::vector<double> lane_factors;  // longrope: of each lane
  int64_t most_positions = 0;        // for which these are right; 0: for any number
};

// What chooses experts instead of the router; model/experts/route_pattern.h.
enum class RoutePattern { none, balanced, zipf };

struct ExpertConfig {
  int64_t count = 0, per_token = 0;  // experts of a layer, and those that compute a token
  int64_t ffn = 0, shared_ffn = 0;   // width of an expert, and of the shared one (0: none)
  bool shared_gate = false;
  std::vector<bool> layers;  // whether each layer has experts; empty: all have
  ops::RouterForm form;
  RoutePattern pattern = RoutePattern::none;
  DType logits = DType::f32;
  ops::RouterLossCoeffs loss_coeffs;
  // In training an expert takes at most this many times an even share of a micro-batch's choices;
  // 0: all. Those of the lowest weight are dropped, or the last ones.
  double capacity_factor = 0;
  bool drops_lightest = true;

  bool drops(bool training) const { return training && capacity_factor > 0; }
  // How many of the choices of T tokens an expert takes.
  int64_t capacity(int64_t T) const {
    const double share = std::ceil(capacity_factor * double(T * per_token) / double(count));
    return int64_t(std::min(share, double(T)));  // a token chooses an expert once
  }
  bool in_layer(int64_t layer) const {
    return count > 0 && (layers.empty() || layers.at(size_t(layer)));
  }
};

struct GptConfig {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn;
  int64_t vocab;          // ids without padding
  int64_t padded_vocab;   // rows of the embedding; those from `vocab` on stay zero and unused
  int64_t max_positions;  // rows of the learned position table
  kernels::NormKind norm = kernels::NormKind::rms;
  float norm_eps = 1e-5f;
  // Norms of the inputs of attention and MLP, and of their outputs before these are added.
  bool input_norms = true, output_norms = false;
  bool norm_plus_one = false;  // norms multiply by 1 + weight
  bool rotary = true;          // false: learned positions
  int64_t rotary_dim = 0;      // the first elements of a head, which are rotated; 0: all
  double rotary_base = 10000;
  RopeScaling rope_scaling;
  std::vector<bool> rope_layers;  // whether each layer rotates; empty: all do
  double local_rotary_base = 0;   // of layers with a window, without scaling; 0: as all layers
  bool gated_mlp = true;          // SwiGLU or GEGLU; false: GELU
  bool gelu_gate = false;         // GEGLU, by GELU in its tanh form
  bool gelu_tanh = true;          // GELU in its tanh form; false: by erf
  bool qkv_bias = false, proj_bias = false;  // biases in attention's linears
  bool linear_bias = false;                  // biases in the MLP's linears and in the layer norms
  bool qk_norm = false;                      // RMSNorm of each head's queries and keys
  bool qk_norm_all_heads = false;            // of all heads' queries as one, and of all keys
  float score_scale = 0;                     // multiplies q k^T; 0: 1 / sqrt(head_dim)
  float score_cap = 0, logit_cap = 0;        // c of c tanh(x / c); 0: none
  float embedding_scale = 1;                 // multiplies token embeddings
  bool tied_embeddings = false;
  int64_t window = 0;               // positions that a query sees; 0: all before it
  std::vector<bool> window_layers;  // whether each layer has the window; empty: all have it
  float hidden_dropout = 0, embedding_dropout = 0;
  float init_std = 0.02f;
  ExpertConfig experts;  // count is 0 for a dense model

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  bool rotates(int64_t layer) const {
    return rotary && (rope_layers.empty() || rope_layers.at(size_t(layer)));
  }
  int64_t window_of(int64_t layer) const {
    return window_layers.empty() || window_layers.at(size_t(layer)) ? window : 0;
  }
};

}  // namespace mtrain::model
