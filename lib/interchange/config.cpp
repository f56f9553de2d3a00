#include "interchange/config.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "interchange/config/keys.h"
#include "interchange/config/reader.h"
#include "interchange/families.h"
#include "interchange/model_source.h"
#include "recipe/schema/schema.h"

namespace mtrain::interchange {

namespace {

using nlohmann::json;
using recipe::Recipe;

// A fact about what a model computes. Settings that only training reads are not facts: dropout,
// initialization, losses, and how tokens reach their experts.
struct Fact {
  const char* field;
  std::string (*of)(const ModelConfig&);
};

// Returns a 1 for each layer for which `has` is true, and a 0 for each other layer.
template <class Has>
std::string layers_with(const ModelConfig& m, const Has& has) {
  std::string layers;
  for (int64_t l = 0; l < m.num_layers; ++l) layers += has(l) ? '1' : '0';
  return layers;
}
std::string layers_with_experts(const ModelConfig& m) {
  return layers_with(m, [&](int64_t l) { return m.has_experts(l); });
}
bool any_dense(const ModelConfig& m) {
  return layers_with_experts(m).find('0') != std::string::npos;
}
bool any_experts(const ModelConfig& m) {
  return layers_with_experts(m).find('1') != std::string::npos;
}
bool rotary(const ModelConfig& m) {
  return m.position_embedding == recipe::PositionEmbedding::rope;
}
std::string layers_with_rope(const ModelConfig& m) {
  return layers_with(m, [&](int64_t l) { return m.has_rope(l); });
}
std::string layers_with_window(const ModelConfig& m) {
  return layers_with(m, [&](int64_t l) { return m.has_window(l); });
}
bool any_window(const ModelConfig& m) {
  return layers_with_window(m).find('1') != std::string::npos;
}
// Returns the text of the rotary base in layers with a window.
std::string local_base(const ModelConfig& m) {
  bool any = false;
  for (int64_t l = 0; l < m.num_layers; ++l) any = any || (m.has_window(l) && m.has_rope(l));
  if (!any) return "unused";
  if (m.rotary_base_local) return fmt::format("{}", *m.rotary_base_local);
  const bool scaled = m.rope_scaling.type != recipe::RopeScalingType::none;
  return scaled ? "as all layers" : fmt::format("{}", m.rotary_base);
}
double attention_scale(const ModelConfig& m) {
  return m.rope_scaling.attention_scale(m.max_position_embeddings.value_or(0));
}
constexpr std::string_view kQueryScalar = "model.query_pre_attn_scalar";
double query_scalar(const ModelConfig& m) {
  if (const auto& scale = m.attention_multiplier) return 1 / (*scale * *scale);
  return m.query_pre_attn_scalar.value_or(double(m.head_dim()));
}
double score_scale(const ModelConfig& m) {
  return m.attention_multiplier.value_or(1 / std::sqrt(query_scalar(m)));
}
bool whole(double x) { return x == std::floor(x) && x < double(int64_t{1} << 53); }
int64_t shared_ffn(const ModelConfig& m) { return m.moe.shared_expert_ffn_hidden_size.value_or(0); }
int64_t expert_ffn(const ModelConfig& m) { return m.moe.ffn_hidden_size.value_or(m.ffn_size()); }
// Whether the weights of a token's experts sum to 1, as after a softmax over the chosen experts.
bool normalized(const ModelConfig& m) {
  return m.moe.norm_topk_prob ||
         (!m.moe.router_pre_softmax && m.moe.router_score == RouterScore::softmax);
}
std::string number(double x) { return fmt::format("{}", x); }
// Returns the text of a number with which the layers compute in fp32.
std::string fp32_number(double x) { return fmt::format("{:.7g}", x); }
template <class E>
std::string word(E value) {
  return std::string(enum_name(value));
}

using M = ModelConfig;
const Fact kFacts[] = {
    {"model.num_layers", [](const M& m) { return fmt::to_string(m.num_layers); }},
    {"model.hidden_size", [](const M& m) { return fmt::to_string(m.hidden_size); }},
    {"model.num_attention_heads", [](const M& m) { return fmt::to_string(m.num_attention_heads); }},
    {"model.num_query_groups", [](const M& m) { return fmt::to_string(m.kv_heads()); }},
    {"model.kv_channels", [](const M& m) { return fmt::to_string(m.head_dim()); }},
    {"model.ffn_hidden_size",
     [](const M& m) {
       return any_dense(m) ? fmt::to_string(m.ffn_size()) : std::string("unused");
     }},
    {"model.vocab_size", [](const M& m) { return fmt::to_string(m.vocab_size); }},
    {"model.max_position_embeddings",
     [](const M& m) { return fmt::to_string(m.max_position_embeddings.value_or(0)); }},
    {"model.normalization", [](const M& m) { return word(m.normalization); }},
    {"model.norm_placement", [](const M& m) { return word(m.norm_placement); }},
    {"model.layernorm_zero_centered_gamma",
     [](const M& m) { return fmt::to_string(m.layernorm_zero_centered_gamma); }},
    {"model.norm_epsilon", [](const M& m) { return number(m.norm_epsilon); }},
    {"model.position_embedding", [](const M& m) { return word(m.position_embedding); }},
    {"model.rotary_base", [](const M& m) { return rotary(m) ? number(m.rotary_base) : "unused"; }},
    {"model.rotary_percent",
     [](const M& m) { return rotary(m) ? number(m.rotary_percent) : "unused"; }},
    {"model.rope_scaling",
     [](const M& m) {
       const recipe::RopeScalingConfig& s = m.rope_scaling;
       if (!rotary(m) || s.type == recipe::RopeScalingType::none) return std::string("none");
       if (s.type == recipe::RopeScalingType::linear) return fmt::format("linear {}", s.factor);
       const int64_t original = s.original_max_position_embeddings;
       if (s.type == recipe::RopeScalingType::yarn)
         return fmt::format("yarn {} {} {} {} {} {}", s.factor, original, s.beta_fast, s.beta_slow,
                            s.truncate, attention_scale(m));
       if (s.type == recipe::RopeScalingType::longrope)
         return fmt::format("longrope {} {} {} {}", s.short_factor, s.long_factor, original,
                            attention_scale(m));
       return fmt::format("{} {} {} {} {}", word(s.type), s.factor, s.low_freq_factor,
                          s.high_freq_factor, original);
     }},
    {"model.rotary_base_local", local_base},
    {"model.no_rope_freq",
     [](const M& m) { return rotary(m) ? layers_with_rope(m) : std::string("unused"); }},
    {"model.activation", [](const M& m) { return word(m.activation); }},
    {"model.add_bias_linear",
     [](const M& m) {
       return fmt::to_string(m.add_bias_linear &&
                             m.normalization == recipe::Normalization::layernorm);
     }},
    {"model.mlp_bias", [](const M& m) { return fmt::to_string(any_dense(m) && m.fc_bias()); }},
    {"model.add_qkv_bias", [](const M& m) { return fmt::to_string(m.qkv_bias()); }},
    {"model.attention_bias", [](const M& m) { return fmt::to_string(m.proj_bias()); }},
    {"model.qk_layernorm", [](const M& m) { return fmt::to_string(m.qk_layernorm); }},
    {"model.qk_layernorm_all_heads",
     [](const M& m) { return fmt::to_string(m.qk_layernorm && m.qk_layernorm_all_heads); }},
    {"model.query_pre_attn_scalar", [](const M& m) { return fp32_number(query_scalar(m)); }},
    {"model.attn_logit_softcapping",
     [](const M& m) { return number(m.attn_logit_softcapping.value_or(0)); }},
    {"model.final_logit_softcapping",
     [](const M& m) { return number(m.final_logit_softcapping.value_or(0)); }},
    {"model.embedding_multiplier", [](const M& m) { return fp32_number(m.embedding_multiplier); }},
    {"model.residual_multiplier", [](const M& m) { return fp32_number(m.residual_multiplier); }},
    {"model.logits_scaling", [](const M& m) { return fp32_number(m.logits_scaling); }},
    {"model.share_embeddings_and_output_weights",
     [](const M& m) { return fmt::to_string(m.share_embeddings_and_output_weights); }},
    {"model.window_size",
     [](const M& m) { return fmt::to_string(any_window(m) ? m.window_size.value_or(0) : 0); }},
    {"model.window_attn_skip_freq",
     [](const M& m) { return any_window(m) ? layers_with_window(m) : std::string("unused"); }},
    {"model.moe.layer_freq", layers_with_experts},
    {"model.moe", [](const M& m) {
       const recipe::MoeConfig& e = m.moe;
       if (!any_experts(m)) return std::string("none");
       return fmt::format(
           "{} experts of width {}, {} for a token; shared width {}, gate {}; {}, sum of 1 {}, "
           "scale {}, groups {} {}, biases {}",
           e.num_experts, expert_ffn(m), e.router_topk, shared_ffn(m),
           shared_ffn(m) > 0 && e.shared_expert_gate, word(e.router_score), normalized(m),
           e.router_topk_scaling_factor, e.num_groups.value_or(1), e.group_topk.value_or(1),
           e.has_router_bias());
     }}};

// Returns the model with a value for every key that a family may have. If all layers have experts,
// the MLP's width is the experts'. Dense layers become a list, and a count of those before the
// first layer with experts. A shared expert becomes a number of experts.
Recipe in_terms_of_keys(const Recipe& recipe) {
  Recipe r = recipe;
  ModelConfig& m = r.model;
  m.attention_bias = m.qkv_bias() && m.proj_bias();
  m.add_qkv_bias = m.qkv_bias();
  m.mlp_bias = m.fc_bias();
  m.query_pre_attn_scalar = query_scalar(recipe.model);
  m.attention_multiplier = score_scale(recipe.model);
  if (!m.rotary_base_local) m.rotary_base_local = m.rotary_base;
  if (any_experts(m) && !any_dense(m)) m.ffn_hidden_size = expert_ffn(m);
  m.moe.dense_layers.clear();
  for (int64_t l = 0; l < m.num_layers; ++l)
    if (!recipe.model.has_experts(l)) m.moe.dense_layers.push_back(l);
  m.moe.sparse_step = 1;
  m.moe.first_dense_layers = 0;
  while (m.moe.first_dense_layers < m.num_layers &&
         !recipe.model.has_experts(m.moe.first_dense_layers))
    ++m.moe.first_dense_layers;
  m.moe.num_groups = m.moe.num_groups.value_or(1);
  m.moe.group_topk = m.moe.group_topk.value_or(1);
  if (any_experts(recipe.model) && shared_ffn(m) % expert_ffn(m) == 0)
    m.moe.num_shared_experts = shared_ffn(m) / expert_ffn(m);
  m.moe.norm_topk_prob = normalized(m);
  return r;
}

// Returns the field's value as JSON, with Hugging Face's names of activations.
json value_of(const Recipe& r, std::string_view field) {
  if (field == "model.activation") {
    const recipe::Activation a = r.model.activation;
    return a == recipe::Activation::swiglu  ? "silu"
           : a == recipe::Activation::gelu  ? "gelu"
           : a == recipe::Activation::geglu ? "gelu_pytorch_tanh"
                                            : "gelu_new";
  }
  // transformers 5 requires an integer for this key, and a real number for other real-valued keys.
  if (const auto& scalar = r.model.query_pre_attn_scalar; field == kQueryScalar && whole(*scalar))
    return int64_t(*scalar);
  const std::string text = recipe::find_row(field)->show(r);
  if (text == "none" || text == "auto" || text == "null") return nullptr;
  const json value = json::parse(text, nullptr, false);
  const bool real = recipe::find_row(field)->ops->info().kind == recipe::TypeInfo::Kind::number;
  if (real && value.is_number_integer()) return value.get<double>();
  return value.is_discarded() ? json(text) : value;
}

json yarn(const recipe::RopeScalingConfig& s) {
  json rope{{"rope_type", "yarn"},
            {"factor", s.factor},
            {"original_max_position_embeddings", s.original_max_position_embeddings},
            {"beta_fast", s.beta_fast},
            {"beta_slow", s.beta_slow}};
  if (!s.truncate) rope["truncate"] = false;
  if (s.attention_factor) rope["attention_factor"] = *s.attention_factor;
  if (s.mscale) rope["mscale"] = *s.mscale;
  if (s.mscale_all_dim) rope["mscale_all_dim"] = *s.mscale_all_dim;
  return rope;
}

// Phi-3 in transformers 4 accepts only these keys, and reads the type from the key `type`.
json longrope(const recipe::RopeScalingConfig& s, bool phi3) {
  json rope{{phi3 ? "type" : "rope_type", "longrope"},
            {"short_factor", s.short_factor},
            {"long_factor", s.long_factor}};
  if (!phi3) rope["original_max_position_embeddings"] = s.original_max_position_embeddings;
  if (s.attention_factor) rope["attention_factor"] = *s.attention_factor;
  return rope;
}

void put_rope(const ModelConfig& m, RopeRule rule, json& config) {
  for (const char* key : {"rope_parameters", "rope_scaling", "original_max_position_embeddings"})
    config.erase(key);
  if (!rotary(m)) return;
  const recipe::RopeScalingConfig& s = m.rope_scaling;
  config["rope_scaling"] = nullptr;
  if (s.type == recipe::RopeScalingType::linear)
    config["rope_scaling"] = {{rule == RopeRule::linear_by_type ? "type" : "rope_type", "linear"},
                              {"factor", s.factor}};
  if (s.type == recipe::RopeScalingType::llama3)
    config["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", s.factor},
        {"low_freq_factor", s.low_freq_factor},
        {"high_freq_factor", s.high_freq_factor},
        {"original_max_position_embeddings", s.original_max_position_embeddings}};
  if (s.type == recipe::RopeScalingType::yarn) config["rope_scaling"] = yarn(s);
  if (s.type == recipe::RopeScalingType::longrope) {
    config["rope_scaling"] = longrope(s, rule == RopeRule::phi3);
    config["original_max_position_embeddings"] = s.original_max_position_embeddings;
  }
}

void put_window(const ModelConfig& m, WindowRule kind, json& config) {
  config.erase("layer_types");
  if (kind == WindowRule::none || kind == WindowRule::every_layer) return;
  const bool window = any_window(m);
  const std::string layers = layers_with_window(m);
  const json width = window ? json(*m.window_size) : json(nullptr);
  json types = json::array();
  for (const char layer : layers)
    types.push_back(layer == '1' ? "sliding_attention" : "full_attention");
  if (kind == WindowRule::patterned) {
    const char* again = "sliding_window_size";
    // transformers builds a mask of this width even if no layer has a window.
    if (window || !config.contains("sliding_window") || config["sliding_window"].is_null())
      config["sliding_window"] = window ? width : json(m.max_position_embeddings.value_or(4096));
    if (config.contains(again)) config[again] = config["sliding_window"];
    config["layer_types"] = types;
    return;
  }
  const bool late = kind == WindowRule::late_layers, from = late || kind == WindowRule::from_layer;
  if (!late) config["use_sliding_window"] = window && kind != WindowRule::alternating;
  config["sliding_window"] = width;
  const size_t first = std::min(layers.find('1'), layers.size());
  if (from) config["max_window_layers"] = first;
  // The first layer with a window does not say enough if a later layer has none.
  const bool last = layers.find('0', first) == std::string::npos;
  if (kind == WindowRule::without_rope || (from && !last)) config["layer_types"] = types;
}

void put_no_rope(const ModelConfig& m, json& config) {
  json layers = json::array();
  for (const char layer : layers_with_rope(m)) layers.push_back(layer == '1' ? 1 : 0);
  config["no_rope_layers"] = layers;
}

json config_of(const Recipe& recipe, const Family& family, const ConfigText& text) {
  const std::string_view model_type = family.model_type;
  json config = text.base.empty() ? json::object() : parse_json(text.base, "config.json");
  // Keys of a different family would have a different meaning, or none.
  if (!config.is_object() || config.value("model_type", json()) != model_type)
    config = json::object();
  const Recipe r = in_terms_of_keys(recipe);
  for (const ConfigKey& key : config_keys(family)) {
    if (key.key == "no_rope_layers") put_no_rope(r.model, config);
    if (key.field.empty() || (key.recipe_wins && config.contains(key.key))) continue;
    if (!key.other_name.empty()) config.erase(std::string(key.other_name));
    config[std::string(key.key)] = value_of(r, key.field);
  }
  // If these keys were absent, transformers would compute positions and windows in its own way.
  put_rope(r.model, family.rope, config);
  put_window(r.model, family.window, config);
  if (!family.further_layers.empty()) config[std::string(family.further_layers)] = 0;
  // Records the ignored keys, since other programs may compute with them.
  if (!recipe.model.ignore_keys.empty()) config["_mtrain_ignored_keys"] = recipe.model.ignore_keys;
  config["architectures"] = {family.class_name};
  config["model_type"] = model_type;
  config.erase("dtype");
  config["torch_dtype"] = text.dtype;
  // If these keys were absent, transformers would use ids of its own.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (!config.contains(key)) config[key] = nullptr;
  return config;
}

// Returns the reasons and hints of all errors, each on its own line.
std::string errors_of(const Diagnostics& diagnostics) {
  std::string text;
  for (const recipe::Diagnostic& d : diagnostics.sorted())
    if (d.severity == recipe::Severity::error)
      text += fmt::format("{}{}{}", text.empty() ? "" : "\n", d.reason,
                          d.hint.empty() ? "" : "\n  hint: " + d.hint);
  return text;
}

// Whether a family has names for all layers of the model. All layers of Mixtral have experts: it
// has no names for layers without them.
bool names_layers(const Family& family, const ModelConfig& m) {
  return !any_dense(m) ||
         std::ranges::count(family.rows, "layers.{l}.mlp.down.weight", &TensorRow::ours) > 0;
}

// Refuses sizes that contradict each other; messages name the keys of config.json. The rules of a
// recipe check the same, but a folder may be read without a recipe.
void check_sizes(const ModelConfig& m, const std::filesystem::path& file) {
  const std::string_view model_type = enum_name(m.architecture);
  const Family* family = find_family(model_type);
  const auto key = [&](std::string_view field) {
    for (const ConfigKey& k : family ? config_keys(*family) : std::vector<ConfigKey>())
      if (k.field == field) return std::string(k.key);
    return std::string(field);
  };
  const auto require = [&](bool ok, const std::string& what) {
    if (!ok)
      throw UserError(fmt::format("{} (model_type {}): {}", file.string(), model_type, what),
                      "download the folder again, or correct its config.json");
  };
  require(m.vocab_size > 0, "it names no vocabulary: set vocab_size to the rows of the embedding");
  require(m.num_attention_heads % m.kv_heads() == 0,
          fmt::format("{} {} is not a multiple of {} {}", key("model.num_attention_heads"),
                      m.num_attention_heads, key("model.num_query_groups"), m.kv_heads()));
  if (any_experts(m))
    require(m.moe.router_topk <= m.moe.num_experts,
            fmt::format("{} {} is more than {} {}", key("model.moe.router_topk"), m.moe.router_topk,
                        key("model.moe.num_experts"), m.moe.num_experts));
  require(!family || names_layers(*family, m),
          fmt::format("every layer of such a model has experts, and "
                      "{} is {}",
                      key("model.moe.num_experts"), m.moe.num_experts));
  const double hidden = double(m.hidden_size), heads = double(m.num_attention_heads);
  const double experts = double(std::max<int64_t>(1, m.moe.num_experts));
  const double widest =
      std::max(double(m.ffn_size()), double(std::max(expert_ffn(m), shared_ffn(m))));
  const double elements =
      (double(m.vocab_size) + double(m.max_position_embeddings.value_or(0))) * hidden +
      double(m.num_layers) * hidden * (4 * heads * double(m.head_dim()) + 4 * experts * widest);
  require(elements < 0x1p60, fmt::format("its sizes make a model of {:.0e} parameters", elements));
  const recipe::RopeScalingConfig& s = m.rope_scaling;
  if (s.type != recipe::RopeScalingType::longrope) return;
  for (const auto& [name, factors] :
       {std::pair{"short_factor", &s.short_factor}, {"long_factor", &s.long_factor}})
    require(int64_t(factors->size()) == m.rotary_dim() / 2,
            fmt::format("{} has {} factors, and a head has {} lanes", name, factors->size(),
                        m.rotary_dim() / 2));
}

}  // namespace

std::vector<std::string> model_differences(const ModelConfig& a, const ModelConfig& b) {
  std::vector<std::string> lines;
  for (const Fact& fact : kFacts)
    if (const std::string x = fact.of(a), y = fact.of(b); x != y)
      lines.push_back(fmt::format("{}: {}, not {}", fact.field, x, y));
  return lines;
}

Recipe read_config(const std::filesystem::path& folder,
                   const std::vector<std::string>& ignore_keys) {
  Diagnostics diagnostics;
  const json model{{"from", folder.string()}, {"init", "random"}, {"ignore_keys", ignore_keys}};
  const auto recipe = recipe::read_recipe_text(
      model_source(), fmt::format("model: {}\n", model.dump()), folder.string(), {}, diagnostics);
  if (const std::string errors = errors_of(diagnostics); !errors.empty()) throw UserError(errors);
  MT_CHECK(recipe, "{}: no model was read, and no error was reported", folder.string());
  check_sizes(recipe->model, folder / "config.json");
  return *recipe;
}

void check_folder_model(const Recipe& recipe, Diagnostics& diagnostics) {
  if (!recipe.model.from || diagnostics.has_errors()) return;
  const std::filesystem::path folder = *recipe.model.from;
  const ModelConfig theirs = read_config(folder, recipe.model.ignore_keys).model;
  for (const Fact& fact : kFacts) {
    const std::string ours = fact.of(recipe.model), its = fact.of(theirs);
    if (ours != its)
      diagnostics.add(fact.field,
                      fmt::format("is {}, but the model of {} has {}", ours,
                                  (folder / "config.json").string(), its),
                      "remove it from the recipe: model.from says what the model is");
  }
}

std::string write_config(const Recipe& recipe, const ConfigText& text, std::string& model_type) {
  std::vector<std::string> types{word(recipe.model.architecture)};
  for (const std::string_view type : model_types())
    if (type != types[0]) types.emplace_back(type);
  std::vector<std::string> fewest;
  size_t least = 0;
  for (const std::string& type : types) {
    const Family* family = find_family(type);
    if (!family) continue;
    const std::string written = config_of(recipe, *family, text).dump(2) + "\n";
    Diagnostics diagnostics;
    const Recipe again =
        read_config_json(written, "config.json", diagnostics, recipe.model.ignore_keys);
    std::vector<std::string> lines;
    if (diagnostics.has_errors())
      lines.push_back(errors_of(diagnostics));
    else
      lines = model_differences(recipe.model, again.model);
    const double scalar = query_scalar(recipe.model);
    if (!whole(scalar) &&
        std::ranges::count(config_keys(*family), kQueryScalar, &ConfigKey::field) > 0)
      lines.push_back(fmt::format("{}: {}, not a whole number", kQueryScalar, scalar));
    if (!names_layers(*family, recipe.model))
      lines.push_back("model.moe.num_experts: layers without experts");
    if (lines.empty()) {
      model_type = type;
      return written;
    }
    // A family whose reader refuses the model counts as more different than any other.
    const size_t distance = diagnostics.has_errors() ? std::size(kFacts) : lines.size();
    for (std::string& line : lines) line = fmt::format("  {}: {}", type, line);
    if (fewest.empty() || distance < least) fewest = lines, least = distance;
  }
  throw UserError(
      fmt::format("no family of Hugging Face's computes this model; the nearest differ in\n{}",
                  fmt::join(fewest, "\n")),
      "such a model can be used by mtrain alone");
}

}  // namespace mtrain::interchange
