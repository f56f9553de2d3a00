#include "recipe/load/hf_config.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"

namespace mtrain::recipe {
namespace {

namespace fs = std::filesystem;

// Says whether a name has the form organization/model, as on the Hugging Face Hub.
bool looks_like_hub_id(std::string_view name) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && std::isalnum(static_cast<unsigned char>(part.front())) &&
           std::ranges::all_of(part, [](unsigned char c) {
             return std::isalnum(c) || c == '.' || c == '_' || c == '-';
           });
  };
  const size_t slash = name.find('/');
  return slash != std::string_view::npos && is_part(name.substr(0, slash)) &&
         is_part(name.substr(slash + 1));
}

// A key of config.json, the field that it sets, and the value that transformers takes if the key is
// left out; an empty one leaves the field's own default.
struct KeyRow {
  std::string_view key, field, omitted;
  bool recipe_wins = false;  // it says how to train, not what the model is
};

// The families whose keys are Llama's, and what each of them takes if a key is left out.
constexpr std::string_view kLikeLlama[] = {"llama",   "mistral",   "qwen2",    "qwen3",
                                           "mixtral", "qwen2_moe", "qwen3_moe"};
constexpr std::string_view kNoKey = "-";  // the family has no such key
struct SharedRow {
  std::string_view key, field;
  std::string_view omitted[std::size(kLikeLlama)];
  bool recipe_wins = false;
};
constexpr SharedRow kShared[] = {
    {"hidden_size", "model.hidden_size", {"4096", "4096", "4096", "4096", "4096", "2048", "2048"}},
    {"intermediate_size",
     "model.ffn_hidden_size",
     {"11008", "14336", "22016", "22016", "14336", "5632", "6144"}},
    {"num_hidden_layers", "model.num_layers", {"32", "32", "32", "32", "32", "24", "24"}},
    {"num_attention_heads",
     "model.num_attention_heads",
     {"32", "32", "32", "32", "32", "16", "32"}},
    {"num_key_value_heads", "model.num_query_groups", {"", "8", "32", "32", "8", "16", "4"}},
    {"head_dim", "model.kv_channels", {"", "", "", "128", "", "", ""}},
    {"vocab_size",
     "model.vocab_size",
     {"32000", "32000", "151936", "151936", "32000", "151936", "151936"}},
    {"max_position_embeddings",
     "model.max_position_embeddings",
     {"2048", "131072", "32768", "32768", "131072", "32768", "32768"}},
    {"rms_norm_eps",
     "model.norm_epsilon",
     {"1.0e-6", "1.0e-6", "1.0e-6", "1.0e-6", "1.0e-5", "1.0e-6", "1.0e-6"}},
    {"rope_theta",
     "model.rotary_base",
     {"10000", "10000", "10000", "10000", "1000000", "10000", "10000"}},
    {"hidden_act", "model.activation", {"silu", "silu", "silu", "silu", "silu", "silu", "silu"}},
    {"attention_bias",
     "model.attention_bias",
     {"false", kNoKey, kNoKey, "false", kNoKey, kNoKey, "false"}},
    {"qkv_bias", "model.add_qkv_bias", {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "true", kNoKey}},
    {"sliding_window", "model.window_size", {kNoKey, "4096", kNoKey, kNoKey, "", kNoKey, kNoKey}},
    {"tie_word_embeddings",
     "model.share_embeddings_and_output_weights",
     {"false", "false", "false", "false", "false", "false", "false"}},
    {"num_local_experts",
     "model.moe.num_experts",
     {kNoKey, kNoKey, kNoKey, kNoKey, "8", kNoKey, kNoKey}},
    {"num_experts", "model.moe.num_experts", {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "60", "128"}},
    {"num_experts_per_tok",
     "model.moe.router_topk",
     {kNoKey, kNoKey, kNoKey, kNoKey, "2", "4", "8"}},
    {"moe_intermediate_size",
     "model.moe.ffn_hidden_size",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "1408", "768"}},
    {"shared_expert_intermediate_size",
     "model.moe.shared_expert_ffn_hidden_size",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "5632", kNoKey}},
    {"norm_topk_prob",
     "model.moe.norm_topk_prob",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "false", "false"}},
    {"decoder_sparse_step",
     "model.moe.sparse_step",
     {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "1", "1"}},
    {"mlp_only_layers", "model.moe.dense_layers", {kNoKey, kNoKey, kNoKey, kNoKey, kNoKey, "", ""}},
    {"initializer_range",
     "model.init_method_std",
     {"0.02", "0.02", "0.02", "0.02", "0.02", "0.02", "0.02"},
     true},
    {"attention_dropout",
     "model.attention_dropout",
     {"0.0", "0.0", "0.0", "0.0", "0.0", "0.0", "0.0"},
     true}};

constexpr KeyRow kGpt2[] = {
    {"n_embd", "model.hidden_size", "768"},
    {"n_inner", "model.ffn_hidden_size", ""},
    {"n_layer", "model.num_layers", "12"},
    {"n_head", "model.num_attention_heads", "12"},
    {"vocab_size", "model.vocab_size", "50257"},
    {"n_positions", "model.max_position_embeddings", "1024"},
    {"layer_norm_epsilon", "model.norm_epsilon", "1.0e-5"},
    {"activation_function", "model.activation", "gelu_new"},
    {"tie_word_embeddings", "model.share_embeddings_and_output_weights", "true"},
    {"initializer_range", "model.init_method_std", "0.02", true},
    {"resid_pdrop", "model.hidden_dropout", "0.1", true},
    {"embd_pdrop", "model.embedding_dropout", "0.1", true},
    {"attn_pdrop", "model.attention_dropout", "0.1", true}};

// Returns the rows of a family of models; none for one that mtrain does not build.
std::vector<KeyRow> rows_of(std::string_view model_type) {
  std::vector<KeyRow> rows;
  if (model_type == "gpt2") rows.assign(std::begin(kGpt2), std::end(kGpt2));
  const auto* family = std::ranges::find(kLikeLlama, model_type);
  if (family == std::end(kLikeLlama)) return rows;
  const auto column = size_t(family - std::begin(kLikeLlama));
  for (const SharedRow& row : kShared)
    if (row.omitted[column] != kNoKey)
      rows.push_back({row.key, row.field, row.omitted[column], row.recipe_wins});
  return rows;
}

// Keys that change nothing in training, or that are read beside the rows.
constexpr std::string_view kNoMatter[] = {"_name_or_path",
                                          "architectures",
                                          "auto_map",
                                          "bos_token_id",
                                          "cache_implementation",
                                          "dtype",
                                          "eos_token_id",
                                          "gradient_checkpointing",
                                          "model_type",
                                          "n_ctx",
                                          "output_past",
                                          "output_router_logits",
                                          "pad_token_id",
                                          "reorder_and_upcast_attn",
                                          "rope_parameters",
                                          "rope_scaling",
                                          "router_aux_loss_coef",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "summary_type",
                                          "summary_use_proj",
                                          "task_specific_params",
                                          "torch_dtype",
                                          "transformers_version",
                                          "use_cache"};

// Keys that may have one value alone: what mtrain does. Qwen's sliding_window and max_window_layers
// act only with use_sliding_window.
struct OnlyValue {
  std::string_view key, value;
};
constexpr OnlyValue kOnly[] = {{"mlp_bias", "false"},
                               {"pretraining_tp", "1"},
                               {"scale_attn_by_inverse_layer_idx", "false"},
                               {"scale_attn_weights", "true"},
                               {"add_cross_attention", "false"},
                               {"router_jitter_noise", "0.0"},
                               {"use_mrope", "false"},
                               {"use_sliding_window", "false"}};

class ConfigReader {
 public:
  ConfigReader(const RawSetting& from, RawSettings& given, Diagnostics& diagnostics)
      : from_(from), given_(given), diagnostics_(diagnostics) {}

  void read() {
    if (!open()) return;
    const Node* type = find("model_type");
    const std::string name = type ? type->text : "";
    const std::vector<KeyRow> rows = rows_of(name);
    if (rows.empty())
      return refuse(fmt::format("{}: model_type `{}` is not one that mtrain builds", path_, name),
                    "llama, mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe and gpt2 are");
    set("model.architecture", *type, "model_type", false);
    for (const KeyRow& row : rows) read_row(row);
    read_rope();
    check_others(rows);
  }

 private:
  bool open() {
    const std::string folder = from_.node.text;
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
      if (looks_like_hub_id(folder))
        refuse(fmt::format("there is no folder {}; as the name of a model on the Hugging Face Hub "
                           "it cannot be used, since nothing is downloaded",
                           folder),
               fmt::format("download it, and write model.from: the folder that holds its "
                           "config.json"));
      else
        refuse(fmt::format("there is no folder {}", folder),
               "give the Hugging Face folder that holds config.json");
      return false;
    }
    path_ = (fs::path(folder) / "config.json").string();
    std::string text;
    try {
      text = read_file(path_);
    } catch (const UserError& e) {
      refuse(e.message(), "give the Hugging Face folder that holds config.json");
      return false;
    }
    Diagnostics own;
    if (!parse_yaml(text, path_, own, config_) || config_.kind != Node::Kind::map) {
      refuse(fmt::format("{} is not a JSON object", path_), "download the folder again");
      return false;
    }
    return true;
  }

  const Node* find(std::string_view key) const { return find_in(config_, key); }
  static const Node* find_in(const Node& map, std::string_view key) {
    for (size_t i = 0; i < map.keys.size(); ++i)
      if (map.keys[i].name == key) return &map.items[i];
    return nullptr;
  }

  void read_row(const KeyRow& row) {
    const Node* node = find(row.key);
    if (node && node->unset()) return;  // null: the field's default
    Node omitted;
    if (!node) {
      if (row.omitted.empty()) return;
      omitted.kind = Node::Kind::scalar;
      omitted.text = row.omitted;
      omitted.location = from_.location;
      node = &omitted;
    }
    // In these families silu stands in a gated MLP and gelu in a plain one; mtrain builds no other.
    const bool gelu = node->text.starts_with("gelu");
    if (row.field == "model.activation" && gelu != (row.omitted == "gelu_new"))
      return refuse(
          fmt::format("{}: {} {} is not built for such models", path_, row.key, node->text),
          "such models cannot be trained yet");
    set(row.field, *node, row.key, row.recipe_wins);
  }

  // Both spellings: rope_scaling beside rope_theta, and rope_parameters, which holds rope_theta.
  void read_rope() {
    const Node* rope = find("rope_parameters");
    if (!rope) rope = find("rope_scaling");
    if (!rope || rope->kind != Node::Kind::map) return;
    for (size_t i = 0; i < rope->keys.size(); ++i) {
      const std::string& key = rope->keys[i].name;
      const Node& value = rope->items[i];
      if ((key == "rope_type" || key == "type") && value.text == "default")
        return read_theta(*rope);
      if (key == "rope_theta") continue;
      const SchemaRow* row = find_row("model.rope_scaling." + key);
      if (!row) {
        refuse(fmt::format("{}: the key {} of its rotary positions is not understood", path_, key),
               "default, linear and llama3 positions are built");
        continue;
      }
      set(row->path, value, key, false);
    }
    read_theta(*rope);
  }
  void read_theta(const Node& rope) {
    if (const Node* theta = find_in(rope, "rope_theta"))
      set("model.rotary_base", *theta, "rope_theta", false, true);
  }

  void check_others(const std::vector<KeyRow>& rows) {
    for (size_t i = 0; i < config_.keys.size(); ++i) {
      const std::string& key = config_.keys[i].name;
      const Node& value = config_.items[i];
      const bool sliding = key == "sliding_window" || key == "max_window_layers";
      if (std::ranges::count(kNoMatter, key) || sliding || value.unset() ||
          std::ranges::count(rows, key, &KeyRow::key))
        continue;
      const auto only = std::ranges::find(kOnly, key, &OnlyValue::key);
      if (only != std::end(kOnly)) {
        if (to_lower(value.text) != only->value)
          refuse(fmt::format("{}: {} is {}, and only {} is built", path_, key, value.text,
                             only->value),
                 "such models cannot be trained yet");
        continue;
      }
      if (key == "layer_types" && std::ranges::all_of(value.items, [](const Node& n) {
            return n.text == "full_attention";
          }))
        continue;
      refuse(fmt::format("{}: the key {} is not understood, and may change what the model computes",
                         path_, key),
             "write the sizes of the model into the recipe instead of model.from");
    }
  }

  void set(std::string_view field, const Node& value, std::string_view key, bool recipe_wins,
           bool replace = false) {
    const SchemaRow* row = find_row(field);
    RawSetting setting{row, "model.from", from_.location, value, Origin::derived};
    setting.node.location = from_.location;
    const auto at = given_.fields.find(row->path);
    const bool own = at != given_.fields.end() && at->second.spelling != "model.from";
    if (!own && (replace || at == given_.fields.end())) {
      given_.fields.insert_or_assign(row->path, std::move(setting));
    } else if (own && !recipe_wins && !same_value(at->second, setting)) {
      diagnostics_.add_at(
          Severity::error, at->second.location, row->path,
          fmt::format("is {}, but {} (model.from at {}) says {}: {}", describe(at->second.node),
                      path_, from_.location.str(), key, value.text),
          "remove one of the two");
    }
  }

  void refuse(std::string reason, std::string hint) {
    diagnostics_.add_at(Severity::error, from_.location, "model.from", std::move(reason),
                        std::move(hint));
    diagnostics_.distrust("model");
  }

  const RawSetting& from_;
  RawSettings& given_;
  Diagnostics& diagnostics_;
  std::string path_;
  Node config_;
};

}  // namespace

std::vector<FieldText> hf_defaults(std::string_view model_type) {
  std::vector<FieldText> defaults;
  for (const KeyRow& row : rows_of(model_type))
    if (!row.omitted.empty()) defaults.push_back({row.field, row.omitted});
  return defaults;
}

void read_hf_config(RawSettings& given, Diagnostics& diagnostics) {
  const auto at = given.fields.find("model.from");
  if (at == given.fields.end() || at->second.node.unset()) return;
  if (at->second.node.kind != Node::Kind::scalar) return;  // its type's message refuses it
  const RawSetting from = at->second;
  ConfigReader(from, given, diagnostics).read();
}

}  // namespace mtrain::recipe
