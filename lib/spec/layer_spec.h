// Describes one layer of a model: attention, then an MLP. Each reads the residual stream through a
// norm and adds its output to the stream. A new kind of attention or MLP becomes an alternative of
// a variant.
#pragma once
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/router_form.h"
#include "spec/activation.h"
#include "spec/rope_scaling.h"

namespace mtrain::spec {

struct Rotary {
  int64_t dims = 0;  // the first `dims` elements of a head are rotated; 0: none
  double base = 10000;
  RopeScaling scaling = {};

  bool operator==(const Rotary&) const = default;
};

// RMSNorms of queries and keys: over each head separately, or over all heads together.
enum class HeadNorm { none, each_head, all_heads };

// The low-rank projections of latent attention (DeepSeek-AI 2024, "DeepSeek-V2"). The keys' first
// elements and the values of all heads are linear in a normalized vector of kv_rank elements. The
// last rope_dim elements of a key are rotated, and all heads share them.
struct LatentProjections {
  int64_t q_rank = 0;  // of the queries' normalized vector; 0: queries are linear in the input
  int64_t kv_rank = 0;
  int64_t rope_dim = 0;
  // The norms of these vectors add it. DeepSeek's models do not take it from the stream's norms.
  double norm_eps = 1e-6;

  bool operator==(const LatentProjections&) const = default;
};

// Multi-head attention whose query heads share key-value heads in groups (Ainslie et al. 2023). If
// `latent` is set, q, k and v come from latent vectors, and as many heads have keys as queries.
struct GroupedAttention {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // positions that a query sees, its own included; 0: all up to its own
  Rotary rotary = {};
  HeadNorm head_norm = HeadNorm::none;
  float score_scale = 0;  // multiplies q k^T; 0: 1 / sqrt(head_dim)
  double score_cap = 0;   // c > 0: scores s become c tanh(s / c); 0: no cap
  bool qkv_bias = false, proj_bias = false;
  int64_t value_head_dim = 0;  // elements of a value; 0: head_dim
  std::optional<LatentProjections> latent = {};

  int64_t value_dim() const { return value_head_dim > 0 ? value_head_dim : head_dim; }
  int64_t qkv_width() const { return (heads + kv_heads) * head_dim + kv_heads * value_dim(); }
  int64_t out_width() const { return heads * value_dim(); }
  bool operator==(const GroupedAttention&) const = default;
};

struct DenseMlp {
  int64_t ffn = 0;
  Activation activation = Activation::swiglu;
  bool bias = false;  // whether both linears have one

  bool gated() const { return is_gated(activation); }
  bool operator==(const DenseMlp&) const = default;
};

// A router sends each token to some of the experts; a shared expert sees every token.
struct Experts {
  int64_t count = 0, per_token = 0;  // experts of the layer, and experts that a token chooses
  int64_t ffn = 0, shared_ffn = 0;   // width of an expert, and of the shared expert (0: none)
  bool shared_gate = false;          // sigmoid(w x) of a token x scales the shared expert's output
  Activation activation = Activation::swiglu;  // gated
  RouterForm form = {};
  DType logits = DType::f32;
  RouterLossCoeffs loss_coeffs = {};
  bool bias = false;     // each expert has a bias, which is added to its scores for the choice
  double bias_rate = 0;  // change of the biases after each step, to balance loads; 0: none
  // In training an expert accepts at most capacity_factor times an even share of a micro-batch's
  // choices; 0: all. The choices with the lowest weights are dropped, or the last choices if not
  // `drops_lightest`.
  double capacity_factor = 0;
  bool drops_lightest = true;

  bool drops(bool training) const { return training && capacity_factor > 0; }
  // Returns how many choices an expert accepts at most from T tokens.
  int64_t capacity(int64_t T) const;
  bool operator==(const Experts&) const = default;
};

struct LayerSpec {
  // Whether attention and MLP have a norm of their input, and a norm of their output before it is
  // added to the residual stream.
  bool input_norms = true, output_norms = false;
  std::variant<GroupedAttention> attention = {};
  std::variant<DenseMlp, Experts> mlp = {};

  const GroupedAttention& grouped() const { return std::get<GroupedAttention>(attention); }
  const Experts* experts() const { return std::get_if<Experts>(&mlp); }  // null: a dense layer
  bool operator==(const LayerSpec&) const = default;
};

}  // namespace mtrain::spec
