#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/math.h"
#include "base/strings.h"
#include "plan/layout.h"
#include "plan/rules/rules.h"
#include "recipe/model_spec.h"
#include "recipe/schema/schema.h"
#include "schedule/catalog.h"

namespace mtrain::plan {
namespace {

using schedule::nearest_legal;

void validate_rotary_size(const recipe::ModelConfig& m, Diagnostics& diagnostics) {
  if (m.multi_latent_attention) return;  // validate_latent_attention() checks qk_rope_head_dim
  if (m.rotary_percent == 1)
    return diagnostics.require(
        m.head_dim() % 2 == 0,
        {"model.kv_channels", "model.hidden_size", "model.num_attention_heads"},
        fmt::format("rotary positions need an even head size, this one is {}", m.head_dim()),
        "change num_attention_heads, or set an even kv_channels");
  const int64_t dims = m.rotary_dim();
  diagnostics.require(
      dims > 0 && dims % 2 == 0, {"model.rotary_percent", "model.kv_channels"},
      fmt::format("{} of a head of {} are {} elements, and rotary positions turn pairs of them",
                  m.rotary_percent, m.head_dim(), dims),
      fmt::format("for {} elements set {}", std::max<int64_t>(2, dims / 2 * 2),
                  double(std::max<int64_t>(2, dims / 2 * 2)) / double(m.head_dim())));
}

// Rotary positions turn pairs of a head's elements.
int64_t even_heads(const recipe::ModelConfig& m) {
  return m.position_embedding == recipe::PositionEmbedding::rope && m.rotary_percent == 1 ? 2 : 1;
}

bool fits_tp(int64_t kv_heads, int64_t tp) { return kv_heads % tp == 0 || tp % kv_heads == 0; }

// Returns the numbers of heads nearest to the recipe's that every rule of this recipe allows:
// "4 or 8 heads, "; empty if there are none.
std::string nearest_heads(const Recipe& r) {
  const auto& m = r.model;
  const int64_t tp = r.distributed.tp_size;
  const bool grouped = m.kv_heads() != m.num_attention_heads;
  const std::string heads =
      nearest_legal(m.num_attention_heads, std::min<int64_t>(m.hidden_size, 4096), [&](int64_t n) {
        const int64_t kv = grouped ? m.kv_heads() : n;
        return m.hidden_size % (n * even_heads(m)) == 0 && n % tp == 0 && n % kv == 0 &&
               fits_tp(kv, tp);
      });
  return heads.empty() ? "" : heads + " heads, ";
}

void validate_heads(const Recipe& r, Diagnostics& diagnostics) {
  const auto& m = r.model;
  const auto& d = r.distributed;
  // The recipe or the folder of model.from says how large a head is. Otherwise heads share
  // hidden_size.
  const bool own_size = r.spellings.contains("model.kv_channels") || m.multi_latent_attention;
  if (!own_size)
    diagnostics.require(
        m.hidden_size % m.num_attention_heads == 0,
        {"model.num_attention_heads", "model.hidden_size"},
        fmt::format("hidden_size {} is not divisible by {} heads{}", m.hidden_size,
                    m.num_attention_heads,
                    r.spellings.contains("model.num_attention_heads") ? "" : " (the default)"),
        fmt::format("use {}a hidden_size of {}, or choose the size of a head, such as "
                    "model.kv_channels: {}",
                    nearest_heads(r),
                    nearest_multiples(m.hidden_size, m.num_attention_heads * even_heads(m)),
                    round_up(ceil_div(m.hidden_size, m.num_attention_heads), 8)));
  diagnostics.require(
      m.num_attention_heads % m.kv_heads() == 0,
      {"model.num_query_groups", "model.num_attention_heads"},
      fmt::format("{} heads are not divisible by {} key-value heads (num_query_groups)",
                  m.num_attention_heads, m.kv_heads()),
      m.kv_heads() > m.num_attention_heads
          ? "there can be at most as many key-value heads as heads"
          : fmt::format("every key-value head serves the same number of heads: use {}",
                        nearest_legal(m.kv_heads(), m.num_attention_heads, [&](int64_t heads) {
                          return m.num_attention_heads % heads == 0 && fits_tp(heads, d.tp_size);
                        })));
  // If the heads do not divide the hidden size, the size of a head is unknown.
  if (m.position_embedding == recipe::PositionEmbedding::rope &&
      (own_size || m.hidden_size % m.num_attention_heads == 0))
    validate_rotary_size(m, diagnostics);
}

using recipe::RopeScalingType;

// A setting of rope_scaling, and the types that read it.
struct RopeReaders {
  const char* name;
  std::vector<RopeScalingType> types;
};
const std::vector<RopeReaders>& rope_readers() {
  using enum RopeScalingType;
  static const std::vector<RopeReaders> list{
      {"factor", {linear, llama3, yarn}},
      {"low_freq_factor", {llama3}},
      {"high_freq_factor", {llama3}},
      {"original_max_position_embeddings", {llama3, yarn, longrope}},
      {"beta_fast", {yarn}},
      {"beta_slow", {yarn}},
      {"truncate", {yarn}},
      {"attention_factor", {yarn, longrope}},
      {"mscale", {yarn}},
      {"mscale_all_dim", {yarn}},
      {"short_factor", {longrope}},
      {"long_factor", {longrope}}};
  return list;
}

// A printed recipe has every setting. Therefore a setting with its default value needs no warning.
void warn_of_unread_scaling(const Recipe& r, Diagnostics& diagnostics) {
  const RopeScalingType type = r.model.rope_scaling.type;
  for (const RopeReaders& setting : rope_readers()) {
    const std::string path = std::string("model.rope_scaling.") + setting.name;
    const recipe::SchemaRow& row = *recipe::find_row(path);
    if (!r.given(path) || row.show(r) == row.show_default() ||
        std::ranges::count(setting.types, type) > 0)
      continue;
    diagnostics.warn(path,
                     fmt::format("{} is ignored: rope_scaling.type {} does not read it",
                                 row.show(r), enum_name(type)),
                     "leave it out, or choose the type that reads it");
  }
}

void validate_yarn(const Recipe& r, Diagnostics& diagnostics) {
  const auto& s = r.model.rope_scaling;
  diagnostics.require(s.beta_fast >= s.beta_slow,
                      {"model.rope_scaling.beta_fast", "model.rope_scaling.beta_slow"},
                      fmt::format("beta_fast {} is below beta_slow {}", s.beta_fast, s.beta_slow),
                      "yarn uses 32 and 1");
  const bool over = s.mscale.value_or(0) > 0, under = s.mscale_all_dim.value_or(0) > 0;
  const char* given = over ? "model.rope_scaling.mscale" : "model.rope_scaling.mscale_all_dim";
  // Latent attention reads mscale_all_dim by itself, too, for the factor of its scores.
  if (r.model.multi_latent_attention && under) {
    if (s.attention_factor && over)
      diagnostics.warn(given, "is ignored, since attention_factor is given",
                       "leave one of them out");
    return;
  }
  if (s.attention_factor && (over || under))
    diagnostics.warn(given, "is ignored, since attention_factor is given", "leave one of them out");
  else if (over != under)
    diagnostics.warn(given, "is ignored: mscale and mscale_all_dim are only read together",
                     "give both, or none");
}

// transformers chooses the factors in each forward, by its longest sequence. mtrain chooses them
// once for a training, by the length of its samples.
void validate_longrope(const Recipe& r, Diagnostics& diagnostics) {
  const auto& s = r.model.rope_scaling;
  const int64_t lanes = r.model.rotary_dim() / 2, length = sample_length(r);
  for (const auto& [field, factors] :
       {std::pair{"model.rope_scaling.short_factor", &s.short_factor},
        std::pair{"model.rope_scaling.long_factor", &s.long_factor}})
    diagnostics.require(
        int64_t(factors->size()) == lanes,
        {field, "model.rotary_percent", "model.kv_channels", "model.hidden_size",
         "model.num_attention_heads"},
        fmt::format("{} factors are given, and a head has {} lanes", factors->size(), lanes),
        "give a factor for each lane, that is for two rotated elements of a head");
  const bool longer = length > s.original_max_position_embeddings;
  diagnostics.resolved(
      longer ? "model.rope_scaling.long_factor" : "model.rope_scaling.short_factor",
      fmt::format("is used, because samples of {} tokens are {}longer than the original {}", length,
                  longer ? "" : "not ", s.original_max_position_embeddings));
}

void validate_scaling(const Recipe& r, Diagnostics& diagnostics) {
  const auto& s = r.model.rope_scaling;
  warn_of_unread_scaling(r, diagnostics);
  if (r.model.position_embedding != recipe::PositionEmbedding::rope && r.model.rotary_percent != 1)
    diagnostics.warn("model.rotary_percent", "is ignored: the model has learned positions",
                     "leave it out, or set position_embedding: rope");
  if (s.type == RopeScalingType::none) return;
  diagnostics.require(r.model.position_embedding == recipe::PositionEmbedding::rope,
                      {"model.rope_scaling.type", "model.position_embedding"},
                      fmt::format("{} rescales rotary positions, but the model has learned ones",
                                  enum_name(s.type)),
                      "remove rope_scaling, or set position_embedding: rope");
  if (s.type == RopeScalingType::llama3)
    diagnostics.require(
        s.low_freq_factor < s.high_freq_factor,
        {"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
        fmt::format("low_freq_factor {} must be below high_freq_factor {}", s.low_freq_factor,
                    s.high_freq_factor),
        "llama 3 uses 1 and 4");
  if (s.type == RopeScalingType::yarn) validate_yarn(r, diagnostics);
  if (s.type == RopeScalingType::longrope) validate_longrope(r, diagnostics);
}

void validate_positions(const Recipe& r, Diagnostics& diagnostics) {
  const auto& m = r.model;
  diagnostics.require(r.dataset.seq_length <= *m.max_position_embeddings,
                      {"dataset.seq_length", "model.max_position_embeddings"},
                      fmt::format("seq_length {} is longer than max_position_embeddings {}",
                                  r.dataset.seq_length, *m.max_position_embeddings),
                      "shorten seq_length or raise model.max_position_embeddings");
  validate_scaling(r, diagnostics);
}

// Checks settings of some layers: rotary positions, the window, and the window's rotary base.
void validate_layers(const Recipe& r, Diagnostics& diagnostics) {
  const auto& m = r.model;
  const char *no_rope = "model.no_rope_freq", *skip = "model.window_attn_skip_freq",
             *window = "model.window_size", *base = "model.rotary_base_local";
  const auto of_all = [](const std::vector<int64_t>& list) {
    return std::ranges::all_of(list, [](int64_t n) { return n == 0; });
  };
  const bool rope = m.position_embedding == recipe::PositionEmbedding::rope;
  check_layer_list(r, no_rope, m.no_rope_freq,
                   "a list has a 1 for a layer without rotary positions and a 0 for one with them",
                   diagnostics);
  check_layer_list(r, skip, m.window_attn_skip_freq,
                   "a list has a 1 for a layer with the window and a 0 for one without",
                   diagnostics);
  diagnostics.require(rope || of_all(m.no_rope_freq), {no_rope, "model.position_embedding"},
                      "takes rotary positions from layers, but the model has learned ones",
                      "remove it, or set position_embedding: rope");
  const bool list = m.window_attn_skip_freq.size() != 1;
  diagnostics.require(m.window_size || (!list && of_all(m.window_attn_skip_freq)), {skip, window},
                      "says which layers have a window, but window_size is not set",
                      "set model.window_size, or remove it");
  diagnostics.require(m.window_size || !m.rotary_base_local, {base, window},
                      "is the base of layers with a window, but window_size is not set",
                      "set model.window_size, or change model.rotary_base");
  diagnostics.require(rope || !m.rotary_base_local, {base, "model.position_embedding"},
                      "is the base of rotary positions, but the model has learned ones",
                      "remove it, or set position_embedding: rope");
  bool any = false, rotates = false;
  for (const spec::LayerSpec& layer : recipe::model_spec(m).layers) {
    const spec::GroupedAttention& a = layer.grouped();
    any = any || a.window > 0;
    rotates = rotates || (a.window > 0 && a.rotary.dims > 0);
  }
  if (any && rope && m.rotary_base_local && !rotates)
    diagnostics.warn(base, "is ignored: no layer with a window has rotary positions",
                     "leave it out, or change no_rope_freq");
  diagnostics.require(any || !m.window_size, {skip, window},
                      fmt::format("none of the {} layers has the window", m.num_layers),
                      "change the layers that have it, or remove window_size");
}

}  // namespace

void check_layer_list(const Recipe& r, const char* field, const std::vector<int64_t>& list,
                      const char* meaning, Diagnostics& diagnostics) {
  if (list.size() == 1) return;
  const char* hint = "give a 0 or a 1 for each layer, or a number";
  diagnostics.require(int64_t(list.size()) == r.model.num_layers, {field, "model.num_layers"},
                      fmt::format("a list of {} for {} layers", list.size(), r.model.num_layers),
                      hint);
  diagnostics.require(std::ranges::all_of(list, [](int64_t n) { return n <= 1; }), {field}, meaning,
                      hint);
}

namespace {
// Megatron reads num_query_groups (1 by default) only if group_query_attention is true.
void check_query_groups(const Recipe& r, Diagnostics& diagnostics) {
  const auto asked = r.foreign.find("model.group_query_attention");
  if (asked == r.foreign.end()) return;
  const std::string word = to_lower(asked->second);
  const bool on = word == "true" || word == "yes" || word == "on";
  const char* groups = "model.num_query_groups";
  if (on)
    diagnostics.require(r.spellings.contains(groups), {groups},
                        "group_query_attention is true, and the number of groups is not given",
                        "set model.num_query_groups; Megatron takes 1");
  else
    diagnostics.require(r.model.kv_heads() == r.model.num_attention_heads, {groups},
                        "is ignored in Megatron, where group_query_attention is false",
                        "remove one of the two");
}

void validate_latent_attention(const Recipe& r, Diagnostics& diagnostics) {
  const recipe::ModelConfig& m = r.model;
  const char* on = "model.multi_latent_attention";
  if (!m.multi_latent_attention) {
    const recipe::ModelConfig usual;  // a printed recipe also names sizes that nobody has chosen
    const std::pair<const char*, bool> sizes[]{
        {"model.q_lora_rank", m.q_lora_rank == usual.q_lora_rank},
        {"model.kv_lora_rank", m.kv_lora_rank == usual.kv_lora_rank},
        {"model.qk_nope_head_dim", m.qk_nope_head_dim == usual.qk_nope_head_dim},
        {"model.qk_rope_head_dim", m.qk_rope_head_dim == usual.qk_rope_head_dim},
        {"model.v_head_dim", m.v_head_dim == usual.v_head_dim}};
    for (const auto& [field, unused] : sizes)
      diagnostics.require(unused, {field, on},
                          "belongs to latent attention, but multi_latent_attention is false",
                          "set model.multi_latent_attention: true, or remove it");
    return;
  }
  diagnostics.require(!m.qkv_bias() && !m.proj_bias(), {on},
                      "biases of latent attention are not supported yet", "leave them out");
  diagnostics.require(m.kv_heads() == m.num_attention_heads,
                      {"model.num_query_groups", "model.num_attention_heads", on},
                      fmt::format("in latent attention each of the {} query heads has keys, not {}",
                                  m.num_attention_heads, m.kv_heads()),
                      "leave num_query_groups out");
  // Folders give the rotated part of a head, or all of it.
  diagnostics.require(
      !m.kv_channels || *m.kv_channels == m.head_dim() || *m.kv_channels == m.qk_rope_head_dim,
      {"model.kv_channels", on},
      fmt::format("a head of latent attention has {} + {} elements", m.qk_nope_head_dim,
                  m.qk_rope_head_dim),
      "leave kv_channels out");
  if (const auto eps = spec::LatentProjections{}.norm_eps;
      r.given("model.norm_epsilon") && m.norm_epsilon != eps)
    diagnostics.resolved("model.norm_epsilon",
                         fmt::format("the norms of latents add {}, as transformers' do", eps));
  diagnostics.require(m.qk_rope_head_dim % 2 == 0, {"model.qk_rope_head_dim"},
                      "rotary positions turn pairs of elements, and this is odd",
                      "set an even number");
  const bool all = m.position_embedding == recipe::PositionEmbedding::rope &&
                   m.no_rope_freq == std::vector<int64_t>{0};
  diagnostics.require(all, {"model.position_embedding", "model.no_rope_freq", on},
                      "latent attention has rotary positions in every layer",
                      "leave no_rope_freq out, and set position_embedding: rope");
  diagnostics.require(m.rotary_percent == 1, {"model.rotary_percent", on},
                      "latent attention rotates qk_rope_head_dim elements",
                      "leave rotary_percent out");
}

void validate_token_prediction(const Recipe& r, Diagnostics& diagnostics) {
  const char* depths = "model.mtp_num_layers";
  if (r.model.mtp_num_layers == 0) {
    const recipe::ModelConfig usual;
    const auto ignored = [&](const char* field, bool changed) {
      if (changed)
        diagnostics.warn(field,
                         "is ignored: mtp_num_layers is 0, so no further tokens are predicted",
                         "set model.mtp_num_layers: 1 or more, or leave it out");
    };
    ignored("model.mtp_loss_scaling_factor",
            r.model.mtp_loss_scaling_factor != usual.mtp_loss_scaling_factor);
    ignored("model.mtp_use_repeated_layer", r.model.mtp_use_repeated_layer);
    return;
  }
  diagnostics.require(
      r.model.position_embedding == recipe::PositionEmbedding::rope,
      {depths, "model.position_embedding"},
      fmt::format("multi-token prediction is not supported with position_embedding: {}",
                  enum_name(r.model.position_embedding)),
      "set position_embedding: rope");
  if (r.peft.on())
    diagnostics.resolved("peft.target_modules",
                         "the layers of multi-token prediction are frozen and get no adapters");
}
}  // namespace

void validate_model(const Recipe& r, Diagnostics& diagnostics) {
  validate_latent_attention(r, diagnostics);
  validate_token_prediction(r, diagnostics);
  check_query_groups(r, diagnostics);
  validate_heads(r, diagnostics);
  validate_positions(r, diagnostics);
  validate_layers(r, diagnostics);
  diagnostics.require(
      !r.model.mlp_bias || r.model.add_bias_linear || r.model.normalization == NormKind::rms,
      {"model.mlp_bias", "model.normalization"},
      "biases of the MLP alone are not supported with layer norms, which have biases, too",
      "set add_bias_linear: true for biases everywhere, or normalization: rmsnorm");
  diagnostics.require(!r.model.qk_layernorm_all_heads || r.model.qk_layernorm,
                      {"model.qk_layernorm_all_heads", "model.qk_layernorm"},
                      "normalizes the queries of all heads together, but qk_layernorm is false",
                      "set model.qk_layernorm: true, or leave qk_layernorm_all_heads out");
  diagnostics.require(!r.model.attention_multiplier || !r.model.query_pre_attn_scalar,
                      {"model.attention_multiplier", "model.query_pre_attn_scalar"},
                      "both set the factor of attention scores",
                      "set one of them, and the other one to none");
  diagnostics.require(r.model.attention_dropout == 0, {"model.attention_dropout"},
                      fmt::format("{} is asked for, but flash attention here has no dropout",
                                  r.model.attention_dropout),
                      "set it to 0; hidden_dropout and embedding_dropout are available");
}

}  // namespace mtrain::plan
