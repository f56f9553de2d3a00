// The shape of the network, and which activations it computes again: the recipe's model and
// recompute sections with every default filled in.
#pragma once
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace mtrain::plan {

// The layers with experts.
struct ExpertShape {
  int64_t count = 0, per_token = 0;  // experts of a layer; 0: the model is dense
  int64_t ffn = 0, shared_ffn = 0;   // width of an expert, and of the shared one (0: none)
  bool shared_gate = false;
  std::vector<bool> layers;  // whether each layer of the model has experts
  // How scores follow from logits, and weights from scores; kernels/router.h says what each means.
  bool sigmoid = false, over_chosen = false, normalize = false;
  double scale = 1;
  int64_t groups = 1, best_groups = 1;
  DType logits = DType::f32;
  // These weigh the balance losses and the z-loss.
  double batch_coeff = 0, sample_coeff = 0, global_coeff = 0, z_coeff = 0;
  bool bias = false;     // experts are chosen by their scores plus a bias of each
  double bias_rate = 0;  // by which the biases balance experts after each step; 0: they stay
  // An expert takes at most this many times an even share of a micro-batch's choices; 0: all. Those
  // of the lowest weight are dropped, or the last ones.
  double capacity_factor = 0;
  bool drops_lightest = true;
  // A benchmark's choices, which depend on no weights (model/experts/route_pattern.h).
  enum class Pattern { none, balanced, zipf } pattern = Pattern::none;
};

// The angles of rotary positions; model/rotary.h says what each kind of scaling does.
struct RopeShape {
  int64_t dims = 0;  // the first elements of a head, which are rotated
  double base = 0;
  enum class Scaling { none, linear, llama3, yarn, longrope } scaling = Scaling::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_positions = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;
  std::vector<double> lane_factors;  // longrope
  int64_t most_positions = 0;        // for which these are right; 0: for any number
};

struct ModelShape {
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int64_t vocab = 0;          // true vocabulary; 0 until the tokenizer has been asked
  int64_t max_positions = 0;  // rows of the learned position table
  bool rms_norm = true;       // false: layer norm
  // Norms of the inputs of attention and MLP, and of their outputs.
  bool input_norms = true, output_norms = false;
  bool norm_plus_one = false;  // norms multiply by 1 + weight
  double norm_eps = 0;
  bool rotary = true;  // false: learned positions
  RopeShape rope;
  std::vector<bool> rope_layers;  // whether each layer rotates
  double local_rotary_base = 0;   // of layers with a window, without scaling; 0: as all layers
  bool gated_mlp = true;          // SwiGLU or GEGLU; false: GELU
  bool gelu_gate = false;         // GEGLU, by GELU in its tanh form
  bool gelu_tanh = true;          // GELU in its tanh form; false: by erf
  bool qkv_bias = false, proj_bias = false;  // biases of attention's linears
  bool linear_bias = false;                  // biases of the MLP and of layer norms
  bool qk_norm = false, tied_embeddings = false;
  bool qk_norm_all_heads = false;       // one norm over all heads' queries, and one over all keys
  double score_scale = 0;               // multiplies q k^T; 0: 1 / sqrt(head_dim)
  double score_cap = 0, logit_cap = 0;  // c of c tanh(x / c); 0: none
  double embedding_scale = 1;
  int64_t window = 0;               // tokens of sliding-window attention; 0: none
  std::vector<bool> window_layers;  // whether each layer has the window
  double hidden_dropout = 0, embedding_dropout = 0, init_std = 0;
  ExpertShape experts;
};

// Which activations backward computes again.
struct RecomputeOptions {
  // In every layer: the attention core, the norms, the MLP.
  bool attention_core = false, norms = false, mlp = false;
  // In every layer with experts: their rows and all that they compute, their activation, the shared
  // expert.
  bool experts = false, experts_act = false, shared_expert = false;
  // The first `layers` layers keep only the input of each group of `group` layers. If `layers` is
  // 0, all layers keep everything.
  int64_t group = 0, layers = 0;
  bool keeps_router = false;  // in these groups: logits, choices and weights of routers are kept
  // The outputs of norms and activations; plan/cheap_recompute.h decides it.
  bool cheap = true;
};

}  // namespace mtrain::plan
