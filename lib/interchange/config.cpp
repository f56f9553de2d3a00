#include "interchange/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/json.h"
#include "interchange/config/keys.h"
#include "interchange/config/reader.h"
#include "interchange/families.h"
#include "interchange/model_differences.h"
#include "interchange/model_source.h"
#include "recipe/model_spec.h"
#include "recipe/schema/schema.h"

namespace mtrain::interchange {

namespace {

using nlohmann::json;
using recipe::Recipe;

// Returns a 1 for each layer for which `has` is true, and a 0 for each other layer.
template <class Has>
std::string layers_with(const ModelConfig& m, const Has& has) {
  std::string layers;
  for (const spec::LayerSpec& layer : spec::without_predictions(recipe::model_spec(m)).layers)
    layers += has(layer) ? '1' : '0';
  return layers;
}
std::string layers_with_window(const ModelConfig& m) {
  return layers_with(m, [](const spec::LayerSpec& layer) { return layer.grouped().window > 0; });
}
std::string layers_with_rope(const ModelConfig& m) {
  return layers_with(m,
                     [](const spec::LayerSpec& layer) { return layer.grouped().rotary.dims > 0; });
}
std::string layers_with_experts(const ModelConfig& m) {
  return layers_with(m, [](const spec::LayerSpec& layer) { return layer.experts(); });
}
bool any_dense(const ModelConfig& m) { return recipe::model_spec(m).dense_mlp(); }
bool any_experts(const ModelConfig& m) { return recipe::model_spec(m).experts(); }
constexpr std::string_view kQueryScalar = "model.query_pre_attn_scalar";
bool is_integral(double x) { return x == std::floor(x) && x < double(int64_t{1} << 53); }
int64_t shared_ffn(const ModelConfig& m) { return m.moe.shared_expert_ffn_hidden_size.value_or(0); }
int64_t expert_ffn(const ModelConfig& m) { return m.moe.ffn_hidden_size.value_or(m.ffn_size()); }

// Returns the model with a value for every key that a family may have. If all layers have experts,
// the MLP's width is the experts'. Dense layers become a list, and a count of those before the
// first layer with experts. A shared expert becomes a number of experts.
Recipe in_terms_of_keys(const Recipe& recipe) {
  Recipe r = recipe;
  ModelConfig& m = r.model = in_one_form(recipe.model);
  m.attention_multiplier =
      recipe.model.attention_multiplier.value_or(1 / std::sqrt(*m.query_pre_attn_scalar));
  if (!m.rotary_base_local) m.rotary_base_local = m.rotary_base;
  // transformers 4 takes the rotated part of a head for head_dim.
  if (m.multi_latent_attention) m.kv_channels = m.qk_rope_head_dim;
  if (any_experts(m) && !any_dense(m)) m.ffn_hidden_size = expert_ffn(m);
  const std::string experts = layers_with_experts(recipe.model);
  m.moe.dense_layers.clear();
  for (int64_t l = 0; l < m.num_layers; ++l)
    if (experts[size_t(l)] == '0') m.moe.dense_layers.push_back(l);
  m.moe.first_dense_layers = int64_t(std::min(experts.find('1'), experts.size()));
  if (any_experts(recipe.model) && shared_ffn(m) % expert_ffn(m) == 0)
    m.moe.num_shared_experts = shared_ffn(m) / expert_ffn(m);
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
  if (const auto& scalar = r.model.query_pre_attn_scalar;
      field == kQueryScalar && is_integral(*scalar))
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
  if (m.position_embedding != recipe::PositionEmbedding::rope) return;
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
  const std::string layers = layers_with_window(m);
  const bool window = layers.find('1') != std::string::npos;
  const json width = window ? json(*m.window_size) : json(nullptr);
  json types = json::array();
  for (const char layer : layers)
    types.push_back(layer == '1' ? "sliding_attention" : "full_attention");
  if (kind == WindowRule::patterned) {
    const char* second_key = "sliding_window_size";
    // transformers builds a mask of this width even if no layer has a window.
    if (window || !config.contains("sliding_window") || config["sliding_window"].is_null())
      config["sliding_window"] = window ? width : json(m.max_position_embeddings.value_or(4096));
    if (config.contains(second_key)) config[second_key] = config["sliding_window"];
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

// A router like DeepSeek-V2's chooses from all experts, or from groups ranked by their best expert.
void put_groups(const recipe::MoeConfig& moe, json& config) {
  const bool limited = moe.num_groups.value_or(1) > moe.group_topk.value_or(1);
  if (limited || config.contains("topk_method"))
    config["topk_method"] = limited ? "group_limited_greedy" : "greedy";
  if (!limited) return;
  config["n_group"] = *moe.num_groups;
  config["topk_group"] = *moe.group_topk;
}

void put_mlp_types(const ModelConfig& m, json& config) {
  json types = json::array();
  for (const char layer : layers_with_experts(m))
    types.push_back(layer == '1' ? "sparse" : "dense");
  config["mlp_layer_types"] = types;
}

json config_of(const Recipe& recipe, const Family& family, const ConfigText& text) {
  const std::string_view model_type = family.model_type;
  json config = text.base.empty() ? json::object() : parse_json(text.base, "config.json");
  // Keys of a different family would have a different meaning, or none.
  const json written = config.is_object() ? config.value("model_type", json()) : json();
  if (written != model_type && (family.other_type.empty() || written != family.other_type))
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
  if (family.deepseek_v2_router) put_groups(r.model.moe, config);
  if (family.lists_mlp_types) put_mlp_types(recipe.model, config);
  if (!family.mtp_layers_key.empty())
    config[std::string(family.mtp_layers_key)] =
        names_predictions(family, recipe.model) ? recipe.model.mtp_num_layers : 0;
  config.erase("quantization_config");  // exports are never quantized
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
         std::ranges::count(family.rows, "layers.{l}.mlp.down.weight", &TensorRow::name) > 0;
}

// Refuses sizes that contradict each other; messages name the keys of config.json. The rules of a
// recipe check the same, but a folder may be read without a recipe.
// Returns at least as many as the weights of all latents, and of the values that are expanded.
double latent_elements(const ModelConfig& m) {
  const double latents = double(m.q_lora_rank.value_or(0)) + double(m.kv_lora_rank),
               heads = double(m.num_attention_heads) * double(m.head_dim() + m.v_head_dim);
  return double(m.num_layers) * (latents + double(m.hidden_size)) * (heads + latents);
}

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
  const bool latent = m.multi_latent_attention;
  require(!latent || m.num_attention_heads == m.kv_heads(),
          fmt::format("{} {} differs from {} {}, but in latent attention each query head has keys",
                      key("model.num_attention_heads"), m.num_attention_heads,
                      key("model.num_query_groups"), m.kv_heads()));
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
      double(m.num_layers) * hidden * (4 * heads * double(m.head_dim()) + 4 * experts * widest) +
      (latent ? latent_elements(m) : 0);
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

Recipe read_config(const std::filesystem::path& folder,
                   const std::vector<std::string>& ignore_keys) {
  Diagnostics diagnostics;
  Recipe recipe = read_config_file(folder.string(), diagnostics, ignore_keys);
  if (const std::string errors = errors_of(diagnostics); !errors.empty()) throw UserError(errors);
  check_sizes(recipe.model, folder / "config.json");
  return recipe;
}

void check_folder_model(const Recipe& recipe, Diagnostics& diagnostics) {
  if (!recipe.model.from || diagnostics.has_errors()) return;
  const std::filesystem::path folder = hub_model_folder(*recipe.model.from);
  const ModelConfig folder_model = read_config(folder, recipe.model.ignore_keys).model;
  for (const ModelDifference& d : model_differences(recipe.model, folder_model))
    diagnostics.add(d.setting,
                    fmt::format("is {}, but the model of {} has {}", d.in_a,
                                (folder / "config.json").string(), d.in_b),
                    fmt::format("remove {} from the recipe: model.from says what the model is",
                                recipe.given(std::string(d.setting)) ? "it" : "what decides it"));
}

std::string write_config(const Recipe& recipe, const ConfigText& text, std::string& model_type) {
  std::vector<std::string> types{std::string(enum_name(recipe.model.architecture))};
  for (const std::string_view type : model_types())
    if (type != types[0]) types.emplace_back(type);
  std::vector<std::string> fewest;
  size_t least = 0;
  for (const std::string& type : types) {
    const Family* family = find_family(type);
    if (!family) continue;
    const std::string written = config_of(recipe, *family, text).dump(2) + "\n";
    Diagnostics diagnostics;
    const Recipe reread =
        read_config_json(written, "config.json", diagnostics, recipe.model.ignore_keys);
    std::vector<std::string> lines;
    if (diagnostics.has_errors())
      lines.push_back(errors_of(diagnostics));
    else
      for (const ModelDifference& d : model_differences(recipe.model, reread.model))
        lines.push_back(d.text());
    const double scalar = *in_one_form(recipe.model).query_pre_attn_scalar;
    if (!is_integral(scalar) &&
        std::ranges::count(config_keys(*family), kQueryScalar, &ConfigKey::field) > 0)
      lines.push_back(fmt::format("{}: {}, not a whole number", kQueryScalar, scalar));
    if (!names_layers(*family, recipe.model))
      lines.push_back("model.moe.num_experts: layers without experts");
    if (lines.empty()) {
      model_type = type;
      return written;
    }
    // A family whose reader refuses the model counts as more different than any other. One setting
    // removes all experts, but many describe them, so the way back counts, too.
    const size_t distance =
        diagnostics.has_errors()
            ? std::numeric_limits<size_t>::max()
            : lines.size() + model_differences(reread.model, recipe.model).size();
    for (std::string& line : lines) line = fmt::format("  {}: {}", type, line);
    if (fewest.empty() || distance < least) fewest = lines, least = distance;
  }
  throw UserError(
      fmt::format("no family of Hugging Face's computes this model; the nearest differ in\n{}",
                  fmt::join(fewest, "\n")),
      "such a model can be used by mtrain alone");
}

}  // namespace mtrain::interchange
