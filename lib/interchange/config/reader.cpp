#include "interchange/config/reader.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/terminal.h"
#include "interchange/config/file.h"
#include "interchange/config/harmless_keys.h"
#include "interchange/config/keys.h"
#include "interchange/config/quantization.h"
#include "interchange/families.h"
#include "interchange/model_source.h"

namespace mtrain::interchange {
namespace {

namespace fs = std::filesystem;

// Keys that are read outside the table of keys, or that exports write.
constexpr std::string_view kRead[] = {"_sliding_window_pattern",
                                      "bos_token_id",
                                      "dtype",
                                      "eos_token_id",
                                      "layer_types",
                                      "max_window_layers",
                                      "model_type",
                                      "num_nextn_predict_layers",
                                      "original_max_position_embeddings",
                                      "pad_token_id",
                                      "rope_parameters",
                                      "rope_scaling",
                                      "sliding_window",
                                      "torch_dtype",
                                      "use_sliding_window"};

// Keys of models and weights that mtrain does not build. Such folders are refused.
constexpr std::string_view kQuantization = "quantization_config";
constexpr std::string_view kOtherParts[] = {"vision_config", "audio_config"};

// Keys that must have one value in all families: the one that mtrain computes. A family whose own
// table has such a key also accepts other values. Gemma computes with hidden_activation, but its
// files may have hidden_act, too.
constexpr OnlyValue kOnly[] = {{"mlp_bias", "false"},
                               {"pretraining_tp", "1"},
                               {"is_decoder", "false"},
                               {"tie_encoder_decoder", "false"},
                               {"scale_attn_by_inverse_layer_idx", "false"},
                               {"scale_attn_weights", "true"},
                               {"add_cross_attention", "false"},
                               {"attention_bias", "false"},
                               {"partial_rotary_factor", "1"},
                               {"rope_interleaved", "false"},
                               {"hidden_act", "gelu_pytorch_tanh"},
                               {"attn_logit_softcapping", "null"},
                               {"use_bidirectional_attention", "false"},
                               {"router_jitter_noise", "0"},
                               {"use_mrope", "false"}};

// Families that mtrain recognizes but does not build, and what to do with such a folder.
struct UnbuiltFamily {
  std::string_view model_type, what, hint;
};
constexpr UnbuiltFamily kUnbuilt[] = {
    {"gemma3", "Gemma 3 with images (Gemma3ForConditionalGeneration)",
     "write its text model, a gemma3_text folder, by transformers: m = "
     "Gemma3ForConditionalGeneration.from_pretrained(FOLDER); t = "
     "Gemma3ForCausalLM(m.config.text_config); t.model = m.model.language_model; "
     "t.tie_weights(); t.save_pretrained(TEXT_FOLDER)"}};

class ConfigReader {
 public:
  ConfigReader(const RawSetting& from, RawSettings& given, Diagnostics& diagnostics)
      : from_(from), given_(given), diagnostics_(diagnostics), file_(from, given, diagnostics) {}

  void read() {
    std::string path;
    if (const std::optional<std::string> text = open(path)) read_text(*text, path);
  }

  void read_text(const std::string& text, const std::string& path) {
    if (!file_.parse(text, path)) return;
    text_ = text;
    const Node* type = file_.find("model_type");
    const std::string name = type ? type->text : "";
    const auto* unbuilt = std::ranges::find(kUnbuilt, name, &UnbuiltFamily::model_type);
    if (unbuilt != std::end(kUnbuilt))
      return file_.refuse(
          fmt::format("{}: model_type {} is {}, and mtrain supports only text models", path, name,
                      unbuilt->what),
          std::string(unbuilt->hint));
    for (const std::string_view part : kOtherParts)
      if (file_.given(part))
        return file_.refuse(
            fmt::format("{}: {} says that model_type `{}` reads more than text", path, part, name),
            "save its language model alone: load the folder by transformers, and call "
            "save_pretrained() of the part that computes the text");
    const Family* family = find_family(name);
    if (!family)
      return file_.refuse(fmt::format("{}: model_type `{}` is not supported", path, name),
                          fmt::format("the supported ones: {}", fmt::join(model_types(), ", ")));
    file_.name_family(name);
    const std::vector<ConfigKey> rows = config_keys(*family);
    file_.set("model.architecture", file_.scalar(family->model_type), "model_type", false);
    for (const ConfigKey& row : rows) read_row(row);
    const bool partial = std::ranges::count(rows, "model.rotary_percent", &ConfigKey::field) > 0;
    if (std::ranges::count(rows, "model.rotary_base", &ConfigKey::field))
      read_positions(file_, family->rope, partial);
    if (std::ranges::count(rows, "no_rope_layers", &ConfigKey::key)) read_no_rope(file_);
    read_windows(file_, family->window, family->window_pattern);
    if (family->lists_mlp_types) read_mlp_types(file_);
    if (family->deepseek_v3_router) read_router(file_);
    if (family->deepseek_v2_router) read_limited_router(file_);
    check_others(rows, *family);
  }

 private:
  // Returns the text of the folder's config.json, and sets its path; nothing after an error.
  std::optional<std::string> open(std::string& path) {
    if (const auto problem = hub_problem(from_.node.text)) {
      file_.refuse(problem->message, problem->hint);
      return std::nullopt;
    }
    const fs::path folder = hub_model_folder(from_.node.text);
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
      file_.refuse(fmt::format("there is no folder {}", folder.string()),
                   "give the Hugging Face folder that holds config.json, or a model's name on the "
                   "Hub, organization/name");
      return std::nullopt;
    }
    path = (folder / "config.json").string();
    try {
      return read_file(path);
    } catch (const UserError& e) {
      file_.refuse(e.message(), hub_missing_files_hint(folder) +
                                    "give the Hugging Face folder that holds config.json");
      return std::nullopt;
    }
  }

  void read_row(const ConfigKey& row) {
    if (row.field.empty()) return;
    const Node* node = file_.find(row.key);
    if (!node && !row.other_name.empty()) node = file_.find(row.other_name);
    if (node && node->unset()) {
      // A null turns an optional field off, whatever the family's default. Others keep theirs.
      const recipe::TypeInfo type = recipe::find_row(row.field)->ops->info();
      if (type.may_be_none) file_.set(row.field, *node, row.key, true);
      // For booleans, transformers 4 reads null as false. transformers 5 refuses most of them.
      else if (type.kind == recipe::TypeInfo::Kind::boolean)
        file_.set(row.field, file_.scalar("false"), row.key, row.recipe_wins);
      return;
    }
    Node omitted;
    if (!node) {
      if (row.omitted.empty() || (row.key == "rope_theta" && theta_of_parameters())) return;
      omitted = file_.scalar(row.omitted);
      node = &omitted;
    }
    if (row.field == "model.activation") return read_activation(row, *node);
    file_.set(row.field, *node, row.key, row.recipe_wins);
  }

  // The default gelu_new marks a family whose MLP has no gate, so far only GPT-2; its activation is
  // a form of gelu. In other families the activation is that of the gate: silu, or the tanh form of
  // gelu.
  void read_activation(const ConfigKey& row, const Node& value) {
    const bool plain = row.omitted == "gelu_new", gelu = value.text.starts_with("gelu");
    const bool tanh = value.text == "gelu_pytorch_tanh" || value.text == "gelu_new";
    if (plain ? !gelu : gelu && !tanh)
      return file_.refuse(fmt::format("{}: {} {} is not supported for such models", file_.path(),
                                      row.key, value.text),
                          "such models cannot be trained yet");
    file_.set(row.field, !plain && tanh ? file_.scalar("geglu") : value, row.key, row.recipe_wins);
  }

  // Returns the rope_theta that read_positions() will set, or null.
  const Node* theta_of_parameters() const {
    for (const char* spelling : {"rope_parameters", "rope_scaling"})
      if (const Node* rope = file_.find(spelling); rope && rope->kind == Node::Kind::map)
        return ConfigFile::find(*rope, "rope_theta");
    return nullptr;
  }

  // Whether mtrain reads the key. Such a key cannot be ignored.
  static bool reads(const std::vector<ConfigKey>& rows, const Family& family,
                    std::string_view key) {
    return key == kQuantization || std::ranges::count(kOtherParts, key) ||
           std::ranges::count(kRead, key) || std::ranges::count(kOnly, key, &OnlyValue::key) ||
           std::ranges::count(family.only, key, &OnlyValue::key) ||
           std::ranges::count(rows, key, &ConfigKey::key) ||
           std::ranges::count(rows, key, &ConfigKey::other_name);
  }

  // Returns the keys that model.ignore_keys names, and refuses those that mtrain reads.
  std::set<std::string, std::less<>> ignored(const std::vector<ConfigKey>& rows,
                                             const Family& family) {
    constexpr const char* kField = "model.ignore_keys";
    const auto at = given_.fields.find(kField);
    if (at == given_.fields.end() || at->second.node.unset()) return {};
    const RawSetting& list = at->second;
    recipe::Recipe scratch;
    recipe::ValueError wrong;  // the check of the field's type reports it
    if (!list.row->ops->read(list.node, list.row->options, list.row->at(scratch), wrong)) return {};
    std::set<std::string, std::less<>> keys;
    for (const std::string& key : scratch.model.ignore_keys) {
      if (reads(rows, family, key))
        diagnostics_.add_at(recipe::Severity::error, list.location, kField,
                            fmt::format("{} is a key by which mtrain reads what the model of {} is",
                                        key, file_.path()),
                            "remove it from the list; it holds keys that mtrain does not know");
      else if (!file_.find(key))
        diagnostics_.add_at(recipe::Severity::warning, list.location, kField,
                            fmt::format("{} has no key {}", file_.path(), key), "");
      keys.insert(key);
    }
    return keys;
  }

  void check_others(const std::vector<ConfigKey>& rows, const Family& family) {
    const auto passed_over = ignored(rows, family);
    const Node& root = file_.root();
    std::vector<std::string> unknown;
    for (size_t i = 0; i < root.keys.size(); ++i) {
      const std::string& key = root.keys[i].name;
      const Node& value = root.items[i];
      const auto of_family = std::ranges::find(family.only, key, &OnlyValue::key);
      const auto* of_all = std::ranges::find(kOnly, key, &OnlyValue::key);
      const bool of_rows = std::ranges::count(rows, key, &ConfigKey::key) ||
                           std::ranges::count(rows, key, &ConfigKey::other_name);
      if (of_family != family.only.end() && value.unset() && of_family->values == "true")
        file_.check_only(key, of_family->values, file_.scalar("false"));  // as for other switches
      if (value.unset() || of_rows || std::ranges::count(kRead, key)) continue;
      const bool empty = value.kind != Node::Kind::scalar && value.items.empty();
      if (of_family != family.only.end()) {
        if (of_family->values != kAnyValue) file_.check_only(key, of_family->values, value);
      } else if (of_all != std::end(kOnly)) {
        file_.check_only(key, of_all->values, value);
      } else if (key == kQuantization) {
        check_quantization();
      } else if (!empty && !passed_over.contains(key) && !is_harmless_key(key)) {
        unknown.push_back(key);
      }
    }
    if (!unknown.empty()) refuse_unknown(std::move(unknown));
  }

  void check_quantization() {
    try {
      read_scale_block(text_, file_.path());
    } catch (const UserError& e) {
      file_.refuse(e.message(), e.hint());
    }
  }

  void refuse_unknown(std::vector<std::string> keys) {
    constexpr size_t kShown = 20, kLongestKey = 60;
    const size_t more = keys.size() - std::min(keys.size(), kShown);
    keys.resize(keys.size() - more);
    for (std::string& key : keys) key = printable(key, kLongestKey);
    file_.refuse(
        fmt::format("{}: the key{} {}{} {} not understood, and may change what the model computes",
                    file_.path(), keys.size() == 1 ? "" : "s", fmt::join(keys, ", "),
                    more > 0 ? fmt::format(" and {} more", more) : "",
                    keys.size() == 1 ? "is" : "are"),
        fmt::format("if nothing in the model computes with {0}, set model.ignore_keys: [{1}] in "
                    "the recipe, or import the folder first: mtrain import hf {2} --output OUT "
                    "--ignore-keys {3}",
                    keys.size() == 1 ? "it" : "them", fmt::join(keys, ", "), from_.node.text,
                    fmt::join(keys, ",")));
  }

  const RawSetting& from_;
  const RawSettings& given_;
  Diagnostics& diagnostics_;
  ConfigFile file_;
  std::string text_;  // of the file
};

}  // namespace

void read_config_folder(RawSettings& given, Diagnostics& diagnostics) {
  const auto at = given.fields.find("model.from");
  if (at == given.fields.end() || at->second.node.unset()) return;
  if (at->second.node.kind != Node::Kind::scalar) return;  // the check of its type reports it
  const RawSetting from = at->second;
  ConfigReader(from, given, diagnostics).read();
}

namespace {

void set(RawSettings& given, const char* field, const std::string& name, const Node& value) {
  const recipe::SchemaRow* row = recipe::find_row(field);
  given.fields.emplace(row->path,
                       RawSetting{row, row->path, {name, 0, 0}, value, recipe::Origin::recipe});
}

Node text_node(const std::string& text) {
  Node node;
  node.kind = Node::Kind::scalar, node.text = text, node.quoted = true;
  return node;
}

RawSettings ignoring(const std::vector<std::string>& keys, const std::string& name) {
  RawSettings given;
  Node list;
  list.kind = Node::Kind::list;
  for (const std::string& key : keys) list.items.push_back(text_node(key));
  if (!keys.empty()) set(given, "model.ignore_keys", name, list);
  return given;
}

}  // namespace

recipe::Recipe read_config_json(const std::string& text, const std::string& name,
                                Diagnostics& diagnostics,
                                const std::vector<std::string>& ignore_keys) {
  diagnostics.add_source(name);
  RawSettings given = ignoring(ignore_keys, name);
  Node node;
  node.location = {name, 0, 0};
  const RawSetting from{recipe::find_row("model.from"), "model.from", node.location, node,
                        recipe::Origin::derived};
  ConfigReader(from, given, diagnostics).read_text(text, name);
  recipe::Recipe recipe = recipe::build_recipe(model_source(), std::move(given), name, diagnostics);
  if (!diagnostics.has_errors() && recipe.model.vocab_size == 0)
    diagnostics.add("model.vocab_size", fmt::format("{} names no vocabulary", name),
                    "set vocab_size to the rows of the embedding");
  return recipe;
}

recipe::Recipe read_config_file(const std::string& folder, Diagnostics& diagnostics,
                                const std::vector<std::string>& ignore_keys) {
  diagnostics.add_source(folder);
  RawSettings given = ignoring(ignore_keys, folder);
  set(given, "model.from", folder, text_node(folder));
  set(given, "model.init", folder, text_node("random"));
  return recipe::build_recipe(model_source(), std::move(given), folder, diagnostics);
}

}  // namespace mtrain::interchange
