#include <string>

#include <fmt/core.h>

#include "plan/layout.h"
#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

void validate_heads(const Recipe& r, Diagnostics& diagnostics) {
  const auto& m = r.model;
  // The recipe or the folder of model.from says how large a head is. Otherwise heads share
  // hidden_size.
  const bool own_size = r.spellings.contains("model.kv_channels");
  if (!own_size)
    diagnostics.require(
        m.hidden_size % m.num_attention_heads == 0,
        {"model.num_attention_heads", "model.hidden_size"},
        fmt::format("hidden_size {} is not divisible by {} heads", m.hidden_size,
                    m.num_attention_heads),
        fmt::format("use a hidden_size of {}, or set kv_channels (the size of a head)",
                    nearest_multiples(m.hidden_size, m.num_attention_heads)));
  diagnostics.require(
      m.num_attention_heads % m.kv_heads() == 0,
      {"model.num_query_groups", "model.num_attention_heads"},
      fmt::format("{} heads are not divisible by {} key-value heads (num_query_groups)",
                  m.num_attention_heads, m.kv_heads()),
      m.kv_heads() > m.num_attention_heads
          ? "there can be at most as many key-value heads as heads"
          : "every key-value head serves the same number of heads: choose a divisor");
  // If the heads do not divide the hidden size, the size of a head is unknown.
  if (m.position_embedding == recipe::PositionEmbedding::rope &&
      (own_size || m.hidden_size % m.num_attention_heads == 0))
    diagnostics.require(
        m.head_dim() % 2 == 0,
        {"model.kv_channels", "model.hidden_size", "model.num_attention_heads"},
        fmt::format("rotary positions need an even head size, this one is {}", m.head_dim()),
        "change num_attention_heads, or set an even kv_channels");
}

void validate_positions(const Recipe& r, Diagnostics& diagnostics) {
  const auto& m = r.model;
  diagnostics.require(r.dataset.seq_length <= *m.max_position_embeddings,
                      {"dataset.seq_length", "model.max_position_embeddings"},
                      fmt::format("seq_length {} is longer than max_position_embeddings {}",
                                  r.dataset.seq_length, *m.max_position_embeddings),
                      "shorten seq_length or raise model.max_position_embeddings");
  const auto& s = m.rope_scaling;
  if (s.type == recipe::RopeScalingType::none) return;
  diagnostics.require(m.position_embedding == recipe::PositionEmbedding::rope,
                      {"model.rope_scaling.type", "model.position_embedding"},
                      fmt::format("{} rescales rotary positions, but the model has learned ones",
                                  enum_name(s.type)),
                      "remove rope_scaling, or set position_embedding: rope");
  if (s.type == recipe::RopeScalingType::llama3)
    diagnostics.require(
        s.low_freq_factor < s.high_freq_factor,
        {"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
        fmt::format("low_freq_factor {} must be below high_freq_factor {}", s.low_freq_factor,
                    s.high_freq_factor),
        "llama 3 uses 1 and 4");
}

}  // namespace

void validate_model(const Recipe& r, Diagnostics& diagnostics) {
  validate_heads(r, diagnostics);
  validate_positions(r, diagnostics);
  diagnostics.require(r.model.attention_dropout == 0, {"model.attention_dropout"},
                      fmt::format("{} is asked for, but flash attention here has no dropout",
                                  r.model.attention_dropout),
                      "set it to 0; hidden_dropout and embedding_dropout are available");
}

}  // namespace mtrain::plan
