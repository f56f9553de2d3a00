#include "recipe/load/hf_config.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "recipe/load/hf_keys.h"

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

// Keys that change nothing in training, or that are read beside the rows.
constexpr std::string_view kNoMatter[] = {"_attn_implementation_autoset",
                                          "_name_or_path",
                                          "architectures",
                                          "auto_map",
                                          "bos_token_id",
                                          "cache_implementation",
                                          "chunk_size_feed_forward",
                                          "dtype",
                                          "eos_token_id",
                                          "gradient_checkpointing",
                                          "id2label",
                                          "is_encoder_decoder",
                                          "is_llama_config",
                                          "label2id",
                                          "layer_types",
                                          "max_window_layers",
                                          "model_type",
                                          "n_ctx",
                                          "original_max_position_embeddings",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_past",
                                          "output_router_logits",
                                          "pad_token_id",
                                          "problem_type",
                                          "reorder_and_upcast_attn",
                                          "return_dict",
                                          "rope_parameters",
                                          "rope_scaling",
                                          "router_aux_loss_coef",
                                          "sliding_window",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "summary_type",
                                          "summary_use_proj",
                                          "task_specific_params",
                                          "tokenizer_class",
                                          "torch_dtype",
                                          "transformers.js_config",
                                          "transformers_version",
                                          "use_cache",
                                          "use_sliding_window"};

// Keys that may have one value alone: what mtrain does. Families that have such a key as a row of
// theirs take other values, too.
struct OnlyValue {
  std::string_view key, value;
};
constexpr OnlyValue kOnly[] = {{"mlp_bias", "false"},
                               {"pretraining_tp", "1"},
                               {"scale_attn_by_inverse_layer_idx", "false"},
                               {"scale_attn_weights", "true"},
                               {"add_cross_attention", "false"},
                               {"attention_bias", "false"},
                               {"partial_rotary_factor", "1"},
                               {"rope_interleaved", "false"},
                               {"router_jitter_noise", "0"},
                               {"use_mrope", "false"}};

constexpr std::string_view kRotatedPart = "partial_rotary_factor";
constexpr const char* kRotaryPercent = "model.rotary_percent";
constexpr const char* kOriginalLength = "original_max_position_embeddings";

// The kinds of rotary positions, the keys that each of them needs, and those that it may have.
struct RopeType {
  std::string_view name, needed, allowed;
};
constexpr RopeType kRopeTypes[] = {
    {"default", "", ""},
    {"linear", "factor", ""},
    {"llama3", "factor low_freq_factor high_freq_factor original_max_position_embeddings", ""},
    {"yarn", "factor",
     "original_max_position_embeddings attention_factor beta_fast beta_slow mscale mscale_all_dim "
     "truncate"},
    {"longrope", "short_factor long_factor",
     "original_max_position_embeddings attention_factor factor"}};
constexpr const char* kBuiltRopes = "default, linear, llama3, yarn and longrope positions are";

class ConfigReader {
 public:
  ConfigReader(const RawSetting& from, RawSettings& given, Diagnostics& diagnostics)
      : from_(from), given_(given), diagnostics_(diagnostics) {}

  void read() {
    const std::optional<std::string> text = open();
    if (text) read_text(*text, path_);
  }

  void read_text(const std::string& text, const std::string& path) {
    path_ = path;
    Diagnostics own;
    const bool whole = parse_json(text, path_, own, config_) && config_.kind == Node::Kind::map;
    if (own.has_errors()) return refuse_text(own);
    if (!whole)
      return refuse(fmt::format("{} is not a JSON object", path_), "download the folder again");
    const Node* type = find("model_type");
    const std::string name = type ? type->text : "";
    for (const char* part : {"vision_config", "audio_config"})
      if (given(config_, part))
        return refuse(
            fmt::format("{}: {} says that model_type `{}` reads more than text", path_, part, name),
            "save its language model alone: load the folder by transformers, and call "
            "save_pretrained() of the part that computes the text");
    const std::vector<HfKey> rows = hf_keys(name);
    if (rows.empty())
      return refuse(fmt::format("{}: model_type `{}` is not one that mtrain builds", path_, name),
                    fmt::format("those that it builds: {}", fmt::join(hf_model_types(), ", ")));
    path_ += fmt::format(" (model_type {})", name);  // the keys of families differ
    set("model.architecture", *type, "model_type", false);
    for (const HfKey& row : rows) read_row(row);
    partial_ = std::ranges::count(rows, kRotatedPart, &HfKey::key) > 0;
    if (std::ranges::count(rows, "model.rotary_base", &HfKey::field)) read_rope(hf_rope(name));
    read_window(hf_window(name));
    check_others(rows);
  }

 private:
  // Returns the text of the folder's config.json.
  std::optional<std::string> open() {
    const std::string folder = from_.node.text;
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
      if (looks_like_hub_id(folder))
        refuse(fmt::format("there is no folder {}; as the name of a model on the Hugging Face Hub "
                           "it cannot be used, since nothing is downloaded",
                           folder),
               "download it, and give the folder that holds its config.json");
      else
        refuse(fmt::format("there is no folder {}", folder),
               "give the Hugging Face folder that holds config.json");
      return std::nullopt;
    }
    path_ = (fs::path(folder) / "config.json").string();
    try {
      return read_file(path_);
    } catch (const UserError& e) {
      refuse(e.message(), "give the Hugging Face folder that holds config.json");
      return std::nullopt;
    }
  }

  const Node* find(std::string_view key) const { return find_in(config_, key); }
  static const Node* find_in(const Node& map, std::string_view key) {
    for (size_t i = 0; i < map.keys.size(); ++i)
      if (map.keys[i].name == key) return &map.items[i];
    return nullptr;
  }

  // The same, but null is as if the key were left out.
  static const Node* given(const Node& map, std::string_view key) {
    const Node* node = find_in(map, key);
    return node && node->unset() ? nullptr : node;
  }

  void read_row(const HfKey& row) {
    const Node* node = find(row.key);
    if (!node && !row.other_name.empty()) node = find(row.other_name);
    if (node && node->unset()) return;  // null: the field's default
    Node omitted;
    if (!node) {
      if (row.omitted.empty() || (row.key == "rope_theta" && theta_of_parameters())) return;
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

  // Returns the value that read_theta() will set; or null.
  const Node* theta_of_parameters() const {
    for (const char* spelling : {"rope_parameters", "rope_scaling"})
      if (const Node* rope = find(spelling); rope && rope->kind == Node::Kind::map)
        return find_in(*rope, "rope_theta");
    return nullptr;
  }

  // Both spellings: rope_scaling beside rope_theta, and rope_parameters, which holds rope_theta.
  void read_rope(HfRope kind) {
    const Node* rope = given(config_, "rope_parameters");
    if (!rope) rope = given(config_, "rope_scaling");
    if (!rope) return set_rope_type("none");
    if (rope->kind != Node::Kind::map)
      return refuse(
          fmt::format("{}: its rotary positions are {}, not an object", path_, describe(*rope)),
          "download the folder again");
    const Node* named = given(*rope, "rope_type");
    if (!named) named = given(*rope, "type");
    std::string word = named ? named->text : "default";
    if (kind == HfRope::phi3 && (word == "su" || word == "yarn")) word = "longrope";
    const auto* type = std::ranges::find(kRopeTypes, word, &RopeType::name);
    const bool of_phi3 = word == "default" || word == "longrope";
    if (type == std::end(kRopeTypes) || (kind == HfRope::phi3 && !of_phi3))
      return refuse(fmt::format("{}: rotary positions of type {} are not built{}", path_, word,
                                kind == HfRope::phi3 ? " for such models" : ""),
                    fmt::format("{}; such a model cannot be used yet",
                                kind == HfRope::phi3 ? "Phi-3 has default and longrope positions"
                                                     : kBuiltRopes));
    for (const std::string& key : split(type->needed, ' '))
      if (!key.empty() && !given(*rope, key))
        refuse(fmt::format("{}: its rotary positions of type {} lack {}", path_, word, key),
               "download the folder again");
    set_rope_type(word == "default" ? "none" : word);
    for (size_t i = 0; i < rope->keys.size(); ++i) read_rope_key(*rope, i, *type);
    read_original_length(*rope, *type, kind);
    if (word == "longrope") check_longrope_factor(*rope);
    read_theta(*rope);
  }
  void set_rope_type(std::string_view type) {
    set("model.rope_scaling.type", scalar(type), "rope_type", false);
  }

  void read_rope_key(const Node& rope, size_t i, const RopeType& type) {
    const std::string& key = rope.keys[i].name;
    const Node& value = rope.items[i];
    if (key == "rope_theta" || key == "rope_type" || key == "type" || value.unset()) return;
    if (key == kRotatedPart && partial_) return set(kRotaryPercent, value, key, false, true);
    if (key == kRotatedPart) return check_only({key, "1"}, value);
    if (type.name == "default") return;  // transformers reads nothing else of them
    if (key == kOriginalLength && reads(type, key)) return;
    if (key == "factor" && type.name == "longrope") return;
    if (reads(type, key)) return set("model.rope_scaling." + key, value, key, false);
    refuse(fmt::format("{}: the key {} of its rotary positions is not understood", path_, key),
           fmt::format("positions of type {} have no such key in transformers", type.name));
  }
  static bool reads(const RopeType& type, const std::string& key) {
    const auto needed = split(type.needed, ' '), allowed = split(type.allowed, ' ');
    return std::ranges::count(needed, key) + std::ranges::count(allowed, key) > 0;
  }

  // The length may stand beside the rotary positions, too, where transformers 5 prefers it and
  // transformers 4 does not look for all types. Left out, it is the longest sequence; but Phi-3
  // always has one beside them.
  void read_original_length(const Node& rope, const RopeType& type, HfRope kind) {
    if (!reads(type, kOriginalLength)) return;
    const Node *inner = given(rope, kOriginalLength), *outer = given(config_, kOriginalLength);
    const Node of_phi3 = scalar("4096");
    if (!outer && kind == HfRope::phi3) outer = &of_phi3;
    if (inner && outer && inner->text != outer->text)
      return refuse(fmt::format("{}: {} is {} among the rotary positions, and {} beside them",
                                path_, kOriginalLength, inner->text, outer->text),
                    "versions of transformers differ in which they take: remove one of the two");
    if (!inner) inner = outer;
    const auto longest = given_.fields.find("model.max_position_embeddings");
    if (!inner && longest != given_.fields.end()) inner = &longest->second.node;
    if (inner)
      set(fmt::format("model.rope_scaling.{}", kOriginalLength), *inner, kOriginalLength, false);
  }
  // The attention factor follows from the lengths. transformers 5 lets a factor win over their
  // quotient, and transformers 4 the quotient over the factor.
  void check_longrope_factor(const Node& rope) {
    const Node* factor = given(rope, "factor");
    if (!factor || given(rope, "attention_factor")) return;
    double value = 0;
    ValueError ignored;
    const auto longest = number_of("model.max_position_embeddings");
    const auto original = number_of("model.rope_scaling.original_max_position_embeddings");
    if (read_value(*factor, {}, value, ignored) && longest == value * original) return;
    refuse(fmt::format("{}: the factor {} of its rotary positions is not {} / {}", path_,
                       factor->text, longest, original),
           "versions of transformers differ in which they take: give an attention_factor");
  }
  double number_of(std::string_view field) const {
    double value = 0;
    ValueError ignored;
    if (const auto at = given_.fields.find(field); at != given_.fields.end())
      read_value(at->second.node, {}, value, ignored);
    return value;
  }
  void read_theta(const Node& rope) {
    if (const Node* theta = find_in(rope, "rope_theta"))
      set("model.rotary_base", *theta, "rope_theta", false, true);
  }

  // A window is one for all layers here. Families that switch it by use_sliding_window ignore
  // sliding_window where that is false. layer_types, where it is given, replaces the family's rule.
  void read_window(HfWindow kind) {
    const Node *use = find("use_sliding_window"), *width = find("sliding_window");
    const bool row = kind == HfWindow::every_layer;
    const bool same = row || kind == HfWindow::switched;  // transformers reads no layer_types
    const bool switched = !row && kind != HfWindow::none && use && to_lower(use->text) == "true";
    const auto at = given_.fields.find("model.window_size");
    const bool window = row ? at != given_.fields.end() && !at->second.node.unset()
                            : switched && !(width && width->unset());
    const int64_t layers = number(layers_key(), 1);
    const int64_t first = number("max_window_layers", 28);
    int64_t windowed = window ? layers : 0;
    std::string said = "sliding_window";
    if (window && kind == HfWindow::from_layer) {
      windowed = std::clamp<int64_t>(layers - first, 0, layers);
      said = fmt::format("max_window_layers {}", first);
    } else if (window && kind == HfWindow::alternating) {
      windowed = std::clamp<int64_t>((std::min(first, layers) + 1) / 2, 0, layers);
      said = "use_sliding_window, for every other layer,";
    }
    const Node* types = find("layer_types");
    if (types && !types->unset()) {
      said = "layer_types";
      const auto sliding = std::ranges::count(types->items, "sliding_attention", &Node::text);
      const auto full = std::ranges::count(types->items, "full_attention", &Node::text);
      if (int64_t(types->items.size()) != layers || sliding + full != layers)
        return refuse(fmt::format("{}: layer_types must say of each of the {} layers "
                                  "full_attention or sliding_attention",
                                  path_, layers),
                      "layers of other kinds are not built");
      if (window || row || kind == HfWindow::none) windowed = sliding;
    }
    const bool none_wide = windowed > 0 && !window;
    if ((windowed != 0 && windowed != layers) || none_wide || (same && window && windowed == 0))
      return refuse(fmt::format("{}: {} gives a window to {} of {} layers, with sliding_window {}",
                                path_, said, windowed, layers, width ? width->text : "left out"),
                    "one window for all layers, or none, is built");
    if (!switched || windowed == 0) return;
    Node omitted = from_.node;
    omitted.text = "4096";
    set("model.window_size", width ? *width : omitted, "sliding_window", false);
  }
  std::string_view layers_key() const { return find("n_layer") ? "n_layer" : "num_hidden_layers"; }
  int64_t number(std::string_view key, int64_t omitted) const {
    const Node* node = find(key);
    if (!node && key == layers_key())
      if (const auto at = given_.fields.find("model.num_layers"); at != given_.fields.end())
        node = &at->second.node;
    int64_t value = omitted;
    ValueError ignored;
    if (node) read_value(*node, {}, value, ignored);
    return value;
  }

  void check_only(const OnlyValue& only, const Node& value) {
    double wanted = 0, is = 0;
    ValueError ignored;
    const bool numbers =
        read_value(scalar(only.value), {}, wanted, ignored) && read_value(value, {}, is, ignored);
    if (numbers ? wanted == is : to_lower(value.text) == only.value) return;
    refuse(
        fmt::format("{}: {} is {}, and only {} is built", path_, only.key, value.text, only.value),
        "such models cannot be trained yet");
  }
  static Node scalar(std::string_view text) {
    Node node;
    node.kind = Node::Kind::scalar;
    node.text = text;
    return node;
  }

  void check_others(const std::vector<HfKey>& rows) {
    for (size_t i = 0; i < config_.keys.size(); ++i) {
      const std::string& key = config_.keys[i].name;
      const Node& value = config_.items[i];
      if (std::ranges::count(kNoMatter, key) || value.unset() ||
          std::ranges::count(rows, key, &HfKey::key) ||
          std::ranges::count(rows, key, &HfKey::other_name))
        continue;
      const auto only = std::ranges::find(kOnly, key, &OnlyValue::key);
      if (only != std::end(kOnly))
        check_only(*only, value);
      else if (key == "quantization_config")
        refuse(fmt::format("{}: quantization_config says that the weights are quantized", path_),
               "take the folder of the model before its quantization, or write the dequantized "
               "weights by transformers: model.dequantize().save_pretrained(folder)");
      else
        refuse(fmt::format("{}: the key {} is not understood, and may change what the model "
                           "computes",
                           path_, key),
               "write the sizes of the model into the recipe instead of model.from");
    }
  }

  void set(std::string_view field, const Node& value, std::string_view key, bool recipe_wins,
           bool replace = false) {
    const SchemaRow* row = find_row(field);
    RawSetting setting{row, "model.from", from_.location, value, Origin::derived};
    setting.node.location = from_.location;
    Recipe scratch;
    if (ValueError wrong;
        !value.unset() && !row->ops->read(value, row->options, row->at(scratch), wrong))
      return refuse(fmt::format("{}: {} is {}: {}", path_, key, describe(value), wrong.reason),
                    "download the folder again, or correct its config.json");
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

  // Tells what is wrong with the text itself, such as a key that stands twice.
  void refuse_text(const Diagnostics& text) {
    for (const Diagnostic& d : text.sorted())
      if (d.severity == Severity::error)
        refuse(fmt::format("{}: {}", d.location.str(), d.reason),
               "correct the file, or download the folder again");
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
  bool partial_ = false;  // the family may rotate a part of each head
};

}  // namespace

std::vector<FieldText> hf_defaults(std::string_view model_type) {
  std::vector<FieldText> defaults;
  for (const HfKey& row : hf_keys(model_type))
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

void read_hf_text(const std::string& text, const std::string& name, RawSettings& given,
                  Diagnostics& diagnostics) {
  Node node;
  node.location = {name, 0, 0};
  const RawSetting from{find_row("model.from"), "model.from", node.location, node, Origin::derived};
  ConfigReader(from, given, diagnostics).read_text(text, name);
}

}  // namespace mtrain::recipe
