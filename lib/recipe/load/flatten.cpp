#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/data_names.h"
#include "recipe/load/foreign_keys.h"
#include "recipe/load/hf_config.h"
#include "recipe/load/list_expression.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/targets.h"
#include "recipe/load/word_hints.h"

namespace mtrain::recipe {

namespace {

std::string normalize_key(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string_view last_word(std::string_view path) {
  return path.substr(path.rfind('.') == std::string_view::npos ? 0 : path.rfind('.') + 1);
}

// These keys of Hydra say how a class is constructed.
bool is_hydra_option(std::string_view key) {
  return key == "_recursive_" || key == "_convert_" || key == "_partial_" || key == "_args_" ||
         key == "_call_";
}

// Whether a value says that what its key names is not used.
bool says_off(const Node& node) {
  if (node.kind == Node::Kind::map || node.kind == Node::Kind::list) return node.items.empty();
  const std::string word = to_lower(node.text);
  return node.unset() || word == "false" || word == "no" || word == "off" || word == "0";
}

Node plain_scalar(std::string_view text, const SourceLocation& location) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  node.location = location;
  return node;
}

// Walks a tree and notes which field each leaf sets.
class Collector {
 public:
  Collector(Diagnostics& diagnostics, Origin origin) : diagnostics_(diagnostics), origin_(origin) {}

  RawSettings given;

  // Reads the root of a recipe, of which Megatron-Bridge's names its class, too.
  void collect_root(const Node& root) {
    unknown_ = Unknown::refuse;
    collect(root, "", unknown_for(root, ""));
    tell_fields_off();
  }

  void set(const std::string& path, const SourceLocation& location, const Node& whole) {
    Node node = named_function(whole);
    const std::string_view word = last_word(path);
    if (word == "_args_" && !node.items.empty())
      return diagnostics_.add_at(Severity::error, location, path,
                                 "arguments without a name cannot be understood",
                                 "write them under their names");
    if (is_hydra_option(word)) return warn_hydra(path, location);
    if (word == "_target_")
      return apply_target(path.substr(0, path.size() - std::min(path.size(), word.size() + 1)),
                          location, node);
    if (path == "mixed_precision" || path == "mixed_precision.name")
      if (const auto* preset = find_precision_preset(node.text))
        return apply_preset(*preset, location, node);
    if (path == "checkpoint.model_save_format" && node.text == "torch_save")
      return diagnostics_.add_at(
          Severity::warning, location, path,
          "torch_save is not written: weights are saved as safetensors, which torch reads, too");
    if (path == "distributed.pipeline.module_fqns_per_model_part" && !node.unset())
      return set_layout(path, location, node);
    if (path == "model.backend.te_fp8" || path == "model.backend.te_fp8.recipe")
      return set_te_fp8(location, node);
    if (path == "env_vars" && node.kind == Node::Kind::map) take_launch_settings(node);
    if (path == "model.window_size" || path == "model.sliding_window")
      if (!read_window(path, location, node)) return;
    if (const SchemaRow* row = find_row(path);
        row && (row->path == "dataset.train" || row->path == "dataset.validation"))
      return set_data(*row, path, location, node);
    if (path == "model.moe_layer_freq" || path == "model.no_rope_freq" ||
        path == "model.window_attn_skip_freq")
      expand_list_expression(node);
    if (const SchemaRow* row = find_row(path)) return add({row, path, location, node, origin_});
    if (convert(path, location, node)) return;
    if (const SchemaRow* row = negated_row(path)) return negate(row, path, location, node);
    if (find_section(path) || is_section_path(path)) return set_section(path, location, node);
    if (const ForeignKey* key = find_foreign_key(path)) return tell(*key, path, location, node);
    if (node.kind == Node::Kind::map && find_key(node, "_target_"))
      return set_section(path, location, node);
    if (unknown_ != Unknown::refuse && swallow(path, location, node)) return;
    if (node.kind == Node::Kind::map && !node.items.empty() && find_foreign_section(path))
      return collect(node, path, unknown_);  // each of its keys is refused with a hint of its own
    refuse_unknown(path, location);
  }

  // Sets a field by its name alone, as Megatron's flags do.
  void set_word(const std::string& word, const SourceLocation& location, const Node& node) {
    // Names that Megatron gives to a field, and that other sections of mtrain have as well.
    struct MegatronWord {
      std::string_view word, path;
    };
    static constexpr MegatronWord kWords[] = {{"adam_beta1", "optimizer.adam_beta1"},
                                              {"adam_beta2", "optimizer.adam_beta2"},
                                              {"num_layers", "model.num_layers"},
                                              {"ffn_hidden_size", "model.ffn_hidden_size"},
                                              {"optimizer", "optimizer.name"}};
    for (const MegatronWord& known : kWords)
      if (known.word == word && node.kind == Node::Kind::scalar && !node.unset())
        return set(std::string(known.path), location, node);
    if (find_row(word) || find_section(word) || is_section_path(word))
      return set(word, location, node);
    auto paths = paths_of_word(word);
    for (std::string_view prefix : {"no_", "disable_"})
      if (paths.empty() && word.starts_with(prefix))
        for (const std::string& plain : paths_of_word(word.substr(prefix.size())))
          if (const auto dot = plain.rfind('.'); dot != std::string::npos)
            paths.push_back(plain.substr(0, dot + 1) + word);
    if (paths.size() > 1) {
      std::string list;
      for (const auto& path : paths) list += (list.empty() ? "" : ", ") + path;
      return diagnostics_.add_at(Severity::error, location, word,
                                 fmt::format("may mean {} fields", paths.size()),
                                 fmt::format("write one of {}", list));
    }
    if (paths.size() == 1) return set(paths[0], location, node);
    if (const ForeignKey* key = find_foreign_flag(word)) return tell(*key, word, location, node);
    set(word, location, node);
  }

 private:
  static constexpr int kMaxUnknown = 50;

  // What becomes of a key that is no setting of mtrain: it is refused; or, among the fields of a
  // class of Megatron, passed over if its value is off; or passed over as the argument of a class
  // that is refused or has no meaning here.
  enum class Unknown { refuse, pass_if_off, pass };

  static const Node* find_key(const Node& map, std::string_view name) {
    for (size_t i = 0; i < map.keys.size(); ++i)
      if (map.keys[i].name == name) return &map.items[i];
    return nullptr;
  }

  // A value that is a function, {_target_: torch.nn.functional.silu, _call_: false}, is its name.
  static Node named_function(const Node& node) {
    const Node* target = node.kind == Node::Kind::map ? find_key(node, "_target_") : nullptr;
    if (!target || !find_key(node, "_call_") || node.keys.size() != 2) return node;
    return plain_scalar(last_word(target->text), target->location);
  }

  Unknown unknown_for(const Node& map, const std::string& path) const {
    const Node* target = find_key(map, "_target_");
    if (!target) return unknown_;
    if (is_megatron_class(target->text)) return Unknown::pass_if_off;
    if (!find_target(path, target->text)) return Unknown::pass;
    return Unknown::refuse;
  }

  // Returns the field that a key of this section sets, which its class may decide.
  static std::string field_of(const Node& section, const std::string& prefix, std::string path) {
    const Node* name = find_key(section, "_target_");
    const Target* target = name ? find_target(prefix, name->text) : nullptr;
    if (!target) return path;
    const auto other = std::ranges::find(target->arguments, path, &Target::Argument::path);
    return other == target->arguments.end() ? path : std::string(other->field);
  }

  void collect(const Node& node, const std::string& prefix, Unknown unknown) {
    const Unknown around = std::exchange(unknown_, unknown);
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const auto& key = node.keys[i];
      const std::string path = field_of(
          node, prefix,
          normalize_path(prefix.empty() ? key.name : prefix + "." + normalize_key(key.name)));
      const Node& item = node.items[i];
      const bool map = item.kind == Node::Kind::map;
      if (path == "cfg" && prefix.empty() && map)
        collect(item, "", unknown);
      else if (path == "model.config" && map)
        set_model_config(item);
      else
        set(path, key.location, item);
    }
    unknown_ = around;
  }

  // Hugging Face's configuration within a model section has the names of the model's fields.
  void set_model_config(const Node& config) {
    Node fields = config;
    for (size_t i = 0; i < fields.keys.size(); ++i) {
      if (fields.keys[i].name != "_target_") continue;
      apply_target("model.config", fields.keys[i].location, fields.items[i]);
      fields.items.erase(fields.items.begin() + long(i));
      fields.keys.erase(fields.keys.begin() + long(i));
      break;
    }
    collect(fields, "model", unknown_);
  }

  // Returns what to write instead of a text where a section is expected.
  static std::string hint_for_section(const std::string& path, const Node& node) {
    const bool text = node.kind == Node::Kind::scalar;
    if (text && path == "dataset") return fmt::format("write dataset: {{train: {}}}", node.text);
    const bool name = text && node.text.find('/') == std::string::npos && !whole_text(node.text);
    if (name && path == "model")
      return fmt::format(
          "a ready recipe of that name is started by mtrain {}; a model in a folder "
          "is model: {{from: FOLDER}}",
          node.text);
    if (text && path == "model")
      return fmt::format(
          "fetch it, for example with `hf download {} --local-dir FOLDER`, since nothing is "
          "downloaded here; then write model: {{from: FOLDER}}",
          node.text);
    if (text)
      for (const std::string& other : paths_of_word(std::string(last_word(path))))
        if (const SchemaRow* row = find_row(other); row && row->path == other)
          return fmt::format("write {}: {{{}: {}}}", row->path.substr(0, row->path.rfind('.')),
                             last_word(row->path), node.text);
    return fmt::format("write `{}:` and its keys indented below", last_word(path));
  }

  void set_section(const std::string& path, const SourceLocation& location, const Node& node) {
    const SchemaSection* section = find_section(path);
    diagnostics_.set_location(path, location);
    if (node.kind == Node::Kind::map) {
      given.sections.insert(path);
      if (const Node* target = find_key(node, "_target_"); path == "model" && target &&
                                                           is_megatron_class(target->text) &&
                                                           !find_key(node, "num_layers")) {
        diagnostics_.distrust("model");
        diagnostics_.add_at(Severity::error, location, "model._target_",
                            "names a class whose sizes the recipe does not have",
                            "write the model's fields, as Megatron-Bridge prints them");
      }
      collect(node, path, unknown_for(node, path));
    } else if (node.kind == Node::Kind::scalar && !node.unset() && section &&
               !section->options.shorthand.empty()) {
      const std::string leaf = path + "." + std::string(section->options.shorthand);
      // The word stands for the whole section. `moe: 8` is the number of experts alone.
      if (path != "model.moe")
        given.replaced.push_back({.what = path + ".*", .leaves_overrides = true});
      add({find_row(leaf), leaf, location, node, origin_});
    } else if (node.unset()) {
      if (!in_dump()) given.replaced.push_back({.what = path + ".*", .location = location});
    } else {
      diagnostics_.add_at(Severity::error, location, path,
                          fmt::format("is a section of several keys, got {}", describe(node)),
                          hint_for_section(path, node));
    }
  }

  // Hydra's class: sets what a known class decides.
  void apply_target(const std::string& section, const SourceLocation& location, const Node& node) {
    if (is_megatron_class(node.text)) return apply_megatron_class(section, location, node);
    const Target* target = find_target(section, node.text);
    if (!target) {
      // Rules do not judge what the class's arguments would have said.
      diagnostics_.distrust(section == "validation_dataset" ? "dataset.validation"
                            : section == "model.config"     ? "model"
                                                            : section);
      return diagnostics_.add_at(
          Severity::error, location, section.empty() ? "_target_" : section + "._target_",
          fmt::format("mtrain runs no Python and does not know {}", describe(node)),
          native_way(section));
    }
    given.replaced.push_back({.what = section + "._target_"});
    for (const FieldText& field : target->sets)
      add({find_row(field.path), section + "._target_", location,
           plain_scalar(field.text, location), origin_});
    std::vector<FieldText> defaults = target->defaults;
    if (section == "model.config" && !target->sets.empty())
      defaults = hf_defaults(target->sets[0].text);
    for (const FieldText& field : defaults) {
      Node value;
      if (parse_yaml(std::string(field.text), "default", diagnostics_, value))
        given.defaults.insert_or_assign(std::string(field.path),
                                        RawSetting{find_row(field.path), section + "._target_",
                                                   location, std::move(value), Origin::derived});
    }
  }

  // A model provider of Megatron-Bridge names its family; all other classes only hold fields.
  void apply_megatron_class(const std::string& section, const SourceLocation& location,
                            const Node& node) {
    if (section != "model") return;
    struct Family {
      const char *word, *architecture;
    };
    for (const Family& family : {Family{"Qwen3MoE", "qwen3_moe"}, Family{"Qwen2MoE", "qwen2_moe"},
                                 Family{"Mixtral", "mixtral"}, Family{"Qwen3", "qwen3"},
                                 Family{"Qwen2", "qwen2"}, Family{"Mistral", "mistral"},
                                 Family{"Llama", "llama"}, Family{"GPTModelProvider", "llama"}})
      if (node.text.find(family.word) != std::string::npos)
        return add({find_row("model.architecture"), "model._target_", location,
                    plain_scalar(family.architecture, location), origin_});
    diagnostics_.distrust("model");
    diagnostics_.add_at(Severity::error, location, "model._target_",
                        fmt::format("models of {} are not built", describe(node)),
                        native_way("model"));
  }

  void apply_preset(const PrecisionPreset& preset, const SourceLocation& location,
                    const Node& node) {
    given.replaced.push_back({.what = "mixed_precision.*", .leaves_overrides = true});
    for (const auto& [path, text] : preset.sets)
      add({find_row(path), "mixed_precision", location, plain_scalar(text, location), origin_});
    if (!preset.left_out.empty())
      diagnostics_.add_at(Severity::warning, location, "mixed_precision",
                          fmt::format("`{}`: {}", node.text, preset.left_out));
  }

  // A list of data may be a blend, which also sets the share of each.
  void set_data(const SchemaRow& row, const std::string& path, const SourceLocation& location,
                const Node& node) {
    ValueError wrong;
    const std::optional<Blend> blend = read_blend(node, path != row.path, wrong);
    if (!wrong.reason.empty()) {
      diagnostics_.set_location(row.path, location);
      return diagnostics_.add_at(Severity::error, location, row.path, wrong.reason, wrong.hint);
    }
    add({&row, path, location, blend ? blend->prefixes : node, origin_});
    if (blend) add({find_row(row.path + "_weights"), path, location, blend->shares, origin_});
  }

  bool read_window(const std::string& path, const SourceLocation& location, Node& node) {
    ValueError wrong;
    if (read_window_pair(node, wrong)) return true;
    diagnostics_.set_location("model.window_size", location);
    diagnostics_.add_at(Severity::error, location, path, wrong.reason, wrong.hint);
    return false;
  }

  // Megatron-Bridge's recipes name variables among the others that have a setting here.
  void take_launch_settings(Node& variables) {
    struct Variable {
      std::string_view name, path;
    };
    static constexpr Variable kVariables[] = {
        {"CUDA_DEVICE_MAX_CONNECTIONS", "launch.cuda_device_max_connections"},
        {"NVTE_FWD_LAYERNORM_SM_MARGIN", "launch.layernorm_sm_margin"},
        {"NVTE_BWD_LAYERNORM_SM_MARGIN", "launch.layernorm_sm_margin"}};
    for (const Variable& variable : kVariables) {
      const auto key = std::ranges::find(variables.keys, variable.name, &Node::Key::name);
      if (key == variables.keys.end()) continue;
      const auto index = key - variables.keys.begin();
      Node value = std::move(variables.items[size_t(index)]);
      value.quoted = false;
      add({find_row(variable.path), fmt::format("env_vars.{}", variable.name), key->location,
           std::move(value), origin_});
      variables.items.erase(variables.items.begin() + index);
      variables.keys.erase(key);
    }
  }

  void set_layout(const std::string& path, const SourceLocation& location, const Node& node) {
    ValueError wrong;
    const std::string layout = read_stages(node, wrong);
    if (layout.empty())
      return diagnostics_.add_at(Severity::error, location, path, wrong.reason, wrong.hint);
    add({find_row("distributed.pipeline.layout"), path, location, plain_scalar(layout, location),
         origin_});
  }

  void set_te_fp8(const SourceLocation& location, const Node& node) {
    const std::string path = "model.backend.te_fp8";
    given.replaced.push_back({.what = path});
    ValueError wrong;
    const std::vector<FieldText> fields = read_te_fp8(node, wrong);
    if (!wrong.reason.empty())
      return diagnostics_.add_at(Severity::error, location, path, wrong.reason, wrong.hint);
    for (const FieldText& field : fields)
      add({find_row(field.path), path, location, plain_scalar(field.text, location), origin_});
  }

  // Sets every field that this name of another system decides. Returns false if there is none.
  bool convert(const std::string& path, const SourceLocation& location, const Node& node) {
    bool found = false;
    for (const ForeignSpelling& name : foreign_spellings()) {
      if (name.path != path) continue;
      found = true;
      if (name.part == Part::all) {
        if (refused_reference(path, name.target, location, node)) return true;
        Node value = node;
        if (value.kind == Node::Kind::scalar) value.text = name.convert(value.text);
        add({find_row(name.target), path, location, std::move(value), origin_});
      } else if (name.part == Part::choice) {
        if (refused_reference(path, name.target, location, node)) return true;
        set_choice(name, location, node);
      } else {
        add_part(name, {find_row(name.target), path, location, node, origin_});
      }
    }
    return found;
  }

  // "yes" is the field's value. "no" only says what the value is not.
  void set_choice(const ForeignSpelling& name, const SourceLocation& location, const Node& node) {
    const std::string path(name.path);
    const SchemaRow* row = find_row(name.target);
    bool yes = false;
    ValueError wrong;
    if (node.unset()) {
      if (!in_dump()) given.replaced.push_back({.what = path});
    } else if (!read_value(node, {}, yes, wrong)) {
      diagnostics_.set_location(row->path, location);
      diagnostics_.add_at(Severity::error, location, row->path,
                          fmt::format("{} (written as {})", wrong.reason, path), wrong.hint);
    } else if (yes) {
      add({row, path, location, plain_scalar(name.on, location), origin_});
    } else {
      add_part(name, {row, path, location, node, origin_});
    }
  }

  void add_part(const ForeignSpelling& name, RawSetting g) {
    if (in_dump() && g.node.unset()) return;
    const auto whole = given.fields.find(g.row->path);
    if (whole != given.fields.end() && !same_part(name, g, whole->second)) {
      // The classes of a dump have switches of their own, off beside what acts.
      if (in_dump()) return;
      refuse_second(whole->second, g);
    }
    note_place(g);
    given.fields.insert_or_assign(part_key(name), std::move(g));
  }

  // A value that is converted must be known here, before references are looked up.
  bool refused_reference(const std::string& path, std::string_view target,
                         const SourceLocation& location, const Node& node) {
    if (node.text.find("${") == std::string::npos) return false;
    diagnostics_.add_at(Severity::error, location, path,
                        "a reference cannot stand under this name, whose values are converted",
                        fmt::format("write it under {}", target));
    return true;
  }

  void negate(const SchemaRow* row, const std::string& path, const SourceLocation& location,
              Node node) {
    if (refused_reference(path, row->path, location, node)) return;
    bool value = false;
    ValueError c;
    if (read_value(node, {}, value, c)) node.text = value ? "false" : "true";
    add({row, path, location, std::move(node), origin_});
  }

  // In a dump, which names every field of its classes, null says nothing.
  bool in_dump() const { return unknown_ == Unknown::pass_if_off; }

  void add(RawSetting g) {
    if (in_dump() && g.node.unset()) return;
    note_place(g);
    if (origin_ == Origin::recipe && !agrees_with_others(g)) return;
    note_replaced(g, given);
    given.fields.insert_or_assign(g.row->path, std::move(g));
  }

  void note_place(const RawSetting& g) {
    diagnostics_.set_location(g.row->path, g.location);
    if (const auto dot = g.spelling.find('.'); dot != std::string::npos)
      given.sections.insert(g.spelling.substr(0, dot));
  }

  // Compares the setting with what this layer has said under other names. Returns false if it says
  // less than they do.
  bool agrees_with_others(const RawSetting& g) {
    for (const ForeignSpelling& name : foreign_spellings()) {
      const auto part = name.part == Part::all || name.target != g.row->path
                            ? given.fields.end()
                            : given.fields.find(part_key(name));
      if (part == given.fields.end() || same_part(name, part->second, g)) continue;
      if (!in_dump()) refuse_second(part->second, g);
      given.fields.erase(part);
    }
    const auto before = given.fields.find(g.row->path);
    if (before == given.fields.end()) return true;
    // AutoModel's recipes may have both, and its random numbers begin with that of `rng`.
    const bool earlier = before->second.spelling == "seed" && g.spelling == "rng.seed";
    if (earlier || (before->second.spelling == "rng.seed" && g.spelling == "seed")) {
      diagnostics_.add_at(Severity::resolved, g.location, "seed", "is not read beside rng.seed");
      return earlier;
    }
    if (g.node.unset() || before->second.node.unset()) return !g.node.unset();
    if (!same_value(before->second, g)) refuse_second(before->second, g);
    return true;
  }

  void refuse_second(const RawSetting& before, const RawSetting& g) {
    diagnostics_.add_at(
        Severity::error, g.location, g.row->path,
        fmt::format("is set twice to different values: `{}` ({}) at {} and `{}` ({}) here",
                    before.spelling, describe(before.node), before.location.str(), g.spelling,
                    describe(g.node)),
        "both names mean the same field; keep one of them");
  }

  void tell(const ForeignKey& key, const std::string& path, const SourceLocation& location,
            const Node& node) {
    if (key.severity == Severity::error && node.unset()) return;
    if (key.kept && !node.unset()) {
      given.foreign[std::string(key.path)] = node.text;
      diagnostics_.set_location(key.path, location);
    }
    if (key.harmless && key.harmless(node)) return;
    if (!told_.insert(key.path).second) return;
    diagnostics_.add_at(key.severity, location, path,
                        key.severity == Severity::resolved
                            ? fmt::format("has no meaning here: {}", key.reason)
                            : std::string(key.reason),
                        std::string(key.hint));
  }

  // Passes over a key of a class that mtrain does not know, or of Megatron where it is off. Returns
  // false if the key must be told.
  bool swallow(const std::string& path, const SourceLocation& location, const Node& node) {
    if (unknown_ == Unknown::pass) return true;
    if (node.kind == Node::Kind::map && !node.items.empty()) {
      collect(node, path, unknown_);
      return true;
    }
    if (!says_off(node)) return false;
    if (off_ == 0) off_location_ = location;
    ++off_;
    return true;
  }

  void tell_fields_off() {
    if (off_ > 0)
      diagnostics_.add_at(
          Severity::resolved, off_location_, "",
          fmt::format("{} fields of Megatron that mtrain does not have are off", off_));
  }

  void refuse_unknown(const std::string& path, const SourceLocation& location) {
    if (++refused_ > kMaxUnknown) return;
    diagnostics_.add_at(Severity::error, location, path, "there is no such key",
                        hint_for_unknown(path));
    if (refused_ == kMaxUnknown)
      diagnostics_.add_at(Severity::error, location, path, "further unknown keys are not listed",
                          "is this file a recipe of mtrain?");
  }

  void warn_hydra(const std::string& name, const SourceLocation& location) {
    if (hydra_warned_) return;
    hydra_warned_ = true;
    diagnostics_.add_at(
        Severity::warning, location, name,
        "_recursive_, _convert_ and _partial_ are ignored: no class is constructed");
  }

  Diagnostics& diagnostics_;
  Origin origin_;
  Unknown unknown_ = Unknown::refuse;
  std::set<std::string_view> told_;  // paths of foreign keys
  bool hydra_warned_ = false;
  int refused_ = 0, off_ = 0;
  SourceLocation off_location_;
};

}  // namespace

std::string normalize_path(std::string_view path) {
  std::string out = normalize_key(path);
  if (out.starts_with("cfg.")) out.erase(0, 4);
  if (out.starts_with("model.config.")) out.erase(6, 7);
  // An older name of AutoModel for its pipeline section.
  if (const std::string old = "autopipeline"; out == old || out.starts_with(old + "."))
    out.replace(0, old.size(), "distributed.pipeline");
  return out;
}

RawSettings flatten_fields(const Node& root, Origin origin, Diagnostics& diagnostics) {
  Collector collector(diagnostics, origin);
  collector.collect_root(root);
  return std::move(collector.given);
}

RawSettings flatten_override(const std::string& path, const SourceLocation& location,
                             const Node& value, Diagnostics& diagnostics) {
  Collector collector(diagnostics, Origin::command_line);
  if (path.find('.') == std::string::npos)
    collector.set_word(path, location, value);
  else
    collector.set(path, location, value);
  return std::move(collector.given);
}

}  // namespace mtrain::recipe
