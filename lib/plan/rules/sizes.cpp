#include <algorithm>
#include <initializer_list>
#include <string_view>

#include <fmt/core.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {

namespace {

// Sums of a few products, counted in bytes, still fit into 64 bits.
constexpr double kLargestProduct = 0x1p55;
// A simulation of the schedule takes about a second for this many passes of a rank in a step.
constexpr int64_t kMaxPasses = int64_t{1} << 16;

}  // namespace

bool validate_sizes(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const recipe::ModelConfig& m = r.model;
  const double sample = double(sample_length(r)), batch = double(r.train.global_batch_size);
  const double tokens = sample * double(std::max(l.micro_batch, r.train.micro_batch_size));
  const double layers = double(m.num_layers), hidden = double(m.hidden_size);
  const bool latent = m.multi_latent_attention;
  const double latents = latent ? double(m.q_lora_rank.value_or(0)) + double(m.kv_lora_rank) : 0;
  const double heads =
      double(m.num_attention_heads) * double(m.head_dim() + (latent ? m.v_head_dim : 0));
  const auto experts = double(std::max<int64_t>(1, m.moe.num_experts));
  const double expert_ffn = std::max(double(m.moe.ffn_hidden_size.value_or(m.ffn_size())),
                                     double(m.moe.shared_expert_ffn_hidden_size.value_or(0)));
  bool all = true;
  const auto check = [&](double product, std::string_view what,
                         std::initializer_list<std::string_view> fields) {
    if (product < kLargestProduct) return;
    refuse(fields,
           fmt::format("makes {:.1e} {}, which no machine can hold or count", product, what),
           "choose sizes of a model and a batch that can be trained", diagnostics);
    all = false;
  };
  check(double(m.vocab_size) * hidden, "values of the embedding",
        {"model.vocab_size", "model.hidden_size"});
  check(
      layers * hidden * heads, "values of the weights of attention",
      {"model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.kv_channels"});
  check(
      layers * (hidden + heads) * latents, "values of the weights of attention",
      {"model.num_layers", "model.num_attention_heads", "model.q_lora_rank", "model.kv_lora_rank"});
  check(layers * hidden * double(m.ffn_size()), "values of the weights of the MLP",
        {"model.num_layers", "model.hidden_size", "model.ffn_hidden_size"});
  check(layers * hidden * experts * expert_ffn, "values of the weights of experts",
        {"model.num_layers", "model.hidden_size", "model.moe.num_experts",
         "model.moe.ffn_hidden_size"});
  check(double(m.max_position_embeddings.value_or(0)) * std::max(hidden, heads),
        "values of the tables of positions",
        {"model.max_position_embeddings", "model.hidden_size"});
  check(tokens * double(m.vocab_size), "logits of a micro-batch",
        {"dataset.seq_length", "model.vocab_size", "train.micro_batch_size"});
  check(tokens * layers * (hidden + heads + latents), "activations of a micro-batch",
        {"dataset.seq_length", "model.num_layers", "model.hidden_size", "train.micro_batch_size"});
  check(tokens * layers * (double(m.ffn_size()) + expert_ffn), "activations of a micro-batch",
        {"dataset.seq_length", "model.num_layers", "model.ffn_hidden_size",
         "train.micro_batch_size"});
  check(tokens * experts, "scores of the routers in a micro-batch",
        {"dataset.seq_length", "model.moe.num_experts", "train.micro_batch_size"});
  check(sample * batch, "tokens of a step", {"dataset.seq_length", "train.global_batch_size"});
  if (r.steps_known())
    check(double(r.train.steps) * batch, "samples of all steps",
          {"train.steps", "train.global_batch_size"});
  // Another rule reports a stage count that is too large for the layers.
  const int64_t stages =
      std::clamp<int64_t>(l.stages_per_rank, 1, std::max<int64_t>(1, m.num_layers));
  const bool listed = l.pp > 1 || m.moe.num_experts > 0;
  if (!listed || l.micro_batches <= kMaxPasses / stages) return all;
  refuse({"train.global_batch_size", "train.micro_batch_size"},
         fmt::format("{} micro-batches in {} stages of a rank are more than {} passes in a step",
                     l.micro_batches, stages, kMaxPasses),
         "raise micro_batch_size, or lower global_batch_size", diagnostics);
  return false;
}

}  // namespace mtrain::plan
