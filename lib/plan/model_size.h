// How many parameters a model has, by how they spread over ranks, and what a token costs.
#pragma once
#include <algorithm>
#include <cstdint>

namespace mtrain::recipe {
struct ModelConfig;
}  // namespace mtrain::recipe

namespace mtrain::plan {

// Parameters or bytes in an estimate: a mistyped size may exceed 64 bits, and what is real is
// exact.
using Count = double;

// One transformer layer. H-sized matrices count with the biases that are cut the same way.
struct LayerParameters {
  Count split = 0;        // cut over tp: attention, MLP, shared expert
  Count keys_values = 0;  // of split: cut over no more ranks than there are heads of them
  Count replicated = 0;   // whole on every tp rank: norms, row-parallel biases, router
  Count expert = 0;       // one routed expert, cut over tp
  Count experts = 0;      // number of routed experts, spread over ep
  Count active = 0;       // of one token: all of the above with top-k experts
  // What each of tp ranks has of split and replicated.
  Count on_rank(Count tp, Count kv_heads) const {
    return (split - keys_values) / tp + keys_values / std::min(tp, kv_heads) + replicated;
  }
  Count total() const { return split + replicated + experts * expert; }
};

struct ModelParameters {
  LayerParameters dense, moe;
  int64_t dense_layers = 0, moe_layers = 0;
  Count token_table = 0;     // real vocabulary x H, cut over tp
  Count output = 0;          // the same, 0 where tied
  Count position_table = 0;  // learned positions
  Count final_norm = 0;

  Count total() const;
  Count active() const;  // that one token meets
  // In tables that are only looked up, which cost no FLOPs.
  Count looked_up() const { return position_table + (output > 0 ? token_table : 0); }
};

// `vocab`: the true vocabulary, which the tokenizer may decide.
ModelParameters count_parameters(const recipe::ModelConfig& model, int64_t vocab);
bool is_moe_layer(const recipe::ModelConfig& model, int64_t layer);

// Model FLOPs of forward and backward per token: 6 per active matmul parameter plus attention,
// counted in full (PaLM's convention, Chowdhery et al. 2022, appendix B: causal attention is not
// halved), so that figures compare with other trainers'.
struct TokenCost {
  double matmul_flops = 0, attention_flops_per_position = 0;
  // In a sequence of that length.
  double flops(int64_t seq_length) const {
    return matmul_flops + attention_flops_per_position * double(seq_length);
  }
};
TokenCost token_cost(const recipe::ModelConfig& model, int64_t vocab);

}  // namespace mtrain::plan
