// Counts the parameters of a model by how they are sharded over ranks, and the FLOPs of a token.
#pragma once
#include <algorithm>
#include <cstdint>

namespace mtrain::spec {
struct ModelSpec;
}  // namespace mtrain::spec

namespace mtrain::plan {

// Parameters or bytes in an estimate. It is a double, since a mistyped size may exceed 64 bits; the
// sizes of real models are exact.
using Count = double;

// Numbers of parameters of one transformer layer, by how they are sharded. Biases are included: a
// bias may be sharded differently from its matrix.
struct LayerParameters {
  Count split = 0;  // sharded over tp: attention, MLP, shared expert
  // The part of `split` that belongs to kv heads. It is sharded over at most as many ranks as there
  // are kv heads.
  Count keys_values = 0;
  Count replicated = 0;  // full on every tp rank: norms, row-parallel biases, router
  Count expert = 0;      // parameters of one routed expert, sharded over tp
  Count experts = 0;     // number of routed experts, spread over ep
  Count active = 0;      // used by one token: `split`, `replicated` and top-k experts
  // Returns what each of `tp` ranks has of `split` and `replicated`.
  Count on_rank(Count tp, Count kv_heads) const {
    return (split - keys_values) / tp + keys_values / std::min(tp, kv_heads) + replicated;
  }
  Count total() const { return split + replicated + experts * expert; }
};

struct ModelParameters {
  LayerParameters dense, moe;
  int64_t dense_layers = 0, moe_layers = 0;
  Count token_table = 0;     // vocabulary x H, sharded over tp
  Count output = 0;          // vocabulary x H; 0 if the output layer shares the token table
  Count position_table = 0;  // learned positions
  Count final_norm = 0;
  Count mtp = 0;       // norms and projections of the layers of multi-token prediction
  Count adapters = 0;  // of all layers; the rest is then frozen

  Count total() const;
  Count active() const;  // used by one token
  // Returns the counts of the model with another number of tokens.
  ModelParameters with_vocabulary(int64_t from, int64_t to) const;
  // Parameters in tables that are only looked up, which costs no FLOPs.
  Count looked_up() const { return position_table + (output > 0 ? token_table : 0); }
};

// The parameters of a layer's adapters: those of its experts, and the others.
struct AdapterParameters {
  Count dense = 0, experts = 0;
  Count all() const { return dense + experts; }
};
// Returns those of one of `tp` ranks, which divide each expert over `expert_tp` ranks, and the
// experts over `ep`.
AdapterParameters adapter_parameters(const spec::ModelSpec& model, int64_t layer, int64_t tp,
                                     int64_t expert_tp, int64_t ep);

// `vocab` is the vocabulary to count: the true one, or the padded one for memory.
ModelParameters count_parameters(const spec::ModelSpec& model, int64_t vocab);

// Model FLOPs of forward and backward per token: 6 per active matmul parameter (4 if it is frozen)
// plus attention,
// counted in full. This is PaLM's convention (Chowdhery et al. 2022, appendix B), which does not
// halve causal attention, so figures compare with other trainers'. A layer with a window counts
// only the positions of the window.
struct TokenCost {
  double matmul_flops = 0;
  // The FLOPs of layers without and with a window for each position that a token may attend to.
  double attention_flops_per_position = 0, window_flops_per_position = 0;
  int64_t window = 0;
  // Returns the FLOPs of a token in a sequence of that length.
  double flops(int64_t seq_length) const {
    return matmul_flops + attention_flops_per_position * double(seq_length) +
           window_flops_per_position * double(std::min(window, seq_length));
  }
};
TokenCost token_cost(const spec::ModelSpec& model);

}  // namespace mtrain::plan
