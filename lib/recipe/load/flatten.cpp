#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/foreign_converters.h"
#include "recipe/load/foreign_keys.h"
#include "recipe/load/key_reports.h"
#include "recipe/load/targets.h"
#include "recipe/load/word_hints.h"
#include "recipe/model_source.h"

namespace mtrain::recipe {

namespace {

std::string normalize_key(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

// Names that a section has in AutoModel's older recipes and in NeMo 2. They are replaced in this
// order.
struct OlderSection {
  std::string_view old, section;
};
constexpr OlderSection kOlderSections[] = {
    {"autopipeline", "distributed.pipeline"}, {"recipe.trainer.strategy", "strategy"},
    {"recipe.strategy", "strategy"},          {"trainer.strategy", "strategy"},
    {"strategy.ddp_config", "ddp"},           {"strategy.ddp", "ddp"},
    {"distributed_config", "distributed"}};

// Whether a key is an option of Hydra for the construction of a class.
bool is_hydra_option(std::string_view key) {
  return key == "_recursive_" || key == "_convert_" || key == "_partial_" || key == "_args_" ||
         key == "_call_";
}

// Returns the field that an argument of the section's class sets, or `path`.
std::string field_of_argument(const ModelSource& models, std::string_view section,
                              std::string_view class_path, const std::string& path) {
  const Target* target = find_target(models, section, class_path);
  if (!target) return path;
  const auto other = std::ranges::find(target->arguments, path, &Target::Argument::path);
  return other == target->arguments.end() ? path : std::string(other->field);
}

// Walks a tree and records which field each leaf sets.
class TreeWalk {
 public:
  TreeWalk(const ModelSource& models, Diagnostics& diagnostics, Origin origin)
      : models_(models), diagnostics_(diagnostics), layer_(diagnostics, origin) {}

  RawSettings take() { return std::move(layer_.given); }

  // Reads the root of a recipe. In recipes of Megatron-Bridge the root has a `_target_`, too.
  void collect_root(const Node& root) {
    layer_.given.automodel |= find_key(root, "recipe") != nullptr;
    if (const Node* trainer = find_key(root, "recipe")) check_trainer(*trainer);
    collect(root, "", unknown_for(root, ""));
    reports_.fields_off();
  }

  void set(const std::string& path, const SourceLocation& location, const Node& whole) {
    Node node = named_function(whole);
    const std::string_view word = last_word(path);
    if (word == "_args_" && !node.items.empty())
      return diagnostics_.add_at(Severity::error, location, path,
                                 "arguments without a name cannot be understood",
                                 "write them under their names");
    if (is_hydra_option(word)) return reports_.hydra_option(path, location);
    if (word == "_target_")
      return apply_target(path.substr(0, path.size() - std::min(path.size(), word.size() + 1)),
                          location, node);
    if (path == "strategy" && node.kind == Node::Kind::map) return collect(node, path, unknown_);
    // The argument of an unknown class of data need not be Megatron's.
    if (word == "split" && unknown_ == Unknown::pass) return;
    // Such sections hold texts for others, or are switched off.
    if (path.starts_with('_') && path.find('.') == std::string::npos && layer_.given.automodel)
      return diagnostics_.add_at(Severity::resolved, location, path,
                                 "has no effect in mtrain: its name begins with _", "");
    if (convert_value(layer_, path, location, node)) return;
    if (const SchemaRow* row = find_row(path)) return layer_.add(row, path, location, node);
    if (convert_name(layer_, path, location, node)) return;
    if (set_in_only_item(path, location, node)) return;
    if (const SchemaRow* row = negated_row(path)) return negate(layer_, row, path, location, node);
    if (find_section(path) || is_section_path(path)) return set_section(path, location, node);
    if (const ForeignKey* key = find_foreign_key(path))
      return reports_.foreign(*key, path, location, node);
    if (node.kind == Node::Kind::map && find_key(node, "_target_"))
      return set_section(path, location, node);
    if (unknown_ != Unknown::refuse && swallow(path, location, node)) return;
    if (node.kind == Node::Kind::map && !node.items.empty() && find_foreign_section(path))
      return collect(node, path, unknown_);  // each of its keys is refused with a hint of its own
    reports_.unknown(path, location);
  }

  // Sets a field by its name alone, as Megatron's flags do.
  void set_word(const std::string& word, const SourceLocation& location, const Node& node) {
    // Flags of Megatron that mean one field, although several sections of mtrain have their names.
    struct MegatronWord {
      std::string_view word, path;
    };
    static constexpr MegatronWord kWords[] = {
        {"adam_beta1", "optimizer.adam_beta1"}, {"adam_beta2", "optimizer.adam_beta2"},
        {"num_layers", "model.num_layers"},     {"ffn_hidden_size", "model.ffn_hidden_size"},
        {"optimizer", "optimizer.name"},        {"split", "dataset.split"}};
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
    if (const ForeignKey* key = find_foreign_flag(word))
      return reports_.foreign(*key, word, location, node);
    set(word, location, node);
  }

 private:
  // What to do with a key that is not a setting of mtrain. `pass_if_off` is for the fields of a
  // Megatron class, and skips keys whose value is off. `pass` is for the arguments of a class that
  // mtrain does not know, and skips all keys.
  enum class Unknown { refuse, pass_if_off, pass };

  static const Node* find_key(const Node& map, std::string_view name) {
    for (size_t i = 0; i < map.keys.size(); ++i)
      if (map.keys[i].name == name) return &map.items[i];
    return nullptr;
  }

  // Replaces a function, {_target_: torch.nn.functional.silu, _call_: false}, by its name.
  static Node named_function(const Node& node) {
    const Node* target = node.kind == Node::Kind::map ? find_key(node, "_target_") : nullptr;
    if (!target || !find_key(node, "_call_") || node.keys.size() != 2) return node;
    return plain_scalar(last_word(target->text), target->location);
  }

  // Sets a key of a list's only item: debug.fault.rank=1. Items of a mapping are merged key by key.
  bool set_in_only_item(const std::string& path, const SourceLocation& location, const Node& node) {
    const std::string_view word = last_word(path);
    if (word.size() == path.size()) return false;
    const std::string list = path.substr(0, path.size() - word.size() - 1);
    const SchemaRow* row = find_row(list);
    if (!row) return false;
    const TypeInfo type = row->ops->info();
    if (type.kind != TypeInfo::Kind::list || type.item != TypeInfo::Kind::mapping) return false;
    Node item;
    item.kind = Node::Kind::map;
    item.location = location;
    item.keys.push_back({.name = std::string(word), .location = location});
    item.items.push_back(node);
    layer_.add(row, list, location, std::move(item));
    if (const auto added = layer_.given.fields.find(row->path); added != layer_.given.fields.end())
      added->second.of_only_item = true;
    return true;
  }

  Unknown unknown_for(const Node& map, const std::string& path) const {
    const Node* target = find_key(map, "_target_");
    if (!target) return unknown_;
    if (is_megatron_class(target->text)) return Unknown::pass_if_off;
    if (!find_target(models_, path, target->text)) return Unknown::pass;
    return Unknown::refuse;
  }

  // Refuses AutoModel's trainers of other tasks. Its trainers of next tokens differ in what they
  // report.
  void check_trainer(const Node& trainer) {
    const Node* target = find_key(trainer, "_target_");
    const std::string_view name = last_word(target ? target->text : trainer.text);
    if (name.find("Recipe") == std::string_view::npos) return;
    if (name.ends_with("RecipeForNextTokenPrediction") && !name.starts_with("Knowledge")) return;
    diagnostics_.add_at(Severity::error, trainer.location, "recipe",
                        fmt::format("{} is not a trainer of next tokens that mtrain knows", name),
                        "write TrainFinetuneRecipeForNextTokenPrediction, which is what mtrain "
                        "does; other tasks are not supported");
  }

  // Returns the field that a key of this section sets. The section's class may change its name.
  std::string field_of(const Node& section, const std::string& prefix, std::string path) const {
    const Node* name = find_key(section, "_target_");
    return name ? field_of_argument(models_, prefix, name->text, path) : path;
  }

  void collect(const Node& node, const std::string& prefix, Unknown unknown) {
    const Unknown around = unknown_;
    treat_unknown(unknown);
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
      layer_.given.automodel |= path == "recipe";
    }
    treat_unknown(around);
  }

  void treat_unknown(Unknown unknown) {
    unknown_ = unknown;
    layer_.in_dump = unknown == Unknown::pass_if_off;
  }

  // Reads Hugging Face's configuration in a model section, whose keys are names of model fields.
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
    const bool name =
        text && node.text.find('/') == std::string::npos && !is_integer_text(node.text);
    if (name && path == "model")
      return fmt::format(
          "a ready recipe of that name is started by mtrain {}; a model in a folder "
          "is model: {{from: FOLDER}}",
          node.text);
    if (text && path == "model")
      return fmt::format(
          "write model: {{from: {0}}}; nothing is downloaded here: `hf download {0}` fetches a "
          "model "
          "of the Hub",
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
      layer_.given.sections.insert(path);
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
      // The word replaces the full section, except `moe: 8`, which sets only the number of experts.
      if (path != "model.moe")
        layer_.given.replaced.push_back({.what = path + ".*", .leaves_overrides = true});
      layer_.add(find_row(leaf), leaf, location, node);
    } else if (node.unset()) {
      if (!layer_.in_dump)
        layer_.given.replaced.push_back({.what = path + ".*", .location = location});
    } else {
      diagnostics_.add_at(Severity::error, location, path,
                          fmt::format("is a section of several keys, got {}", describe(node)),
                          hint_for_section(path, node));
    }
  }

  // Applies a section's `_target_`: sets the fields that a known class decides.
  void apply_target(const std::string& section, const SourceLocation& location, const Node& node) {
    if (is_megatron_class(node.text)) return apply_megatron_class(section, location, node);
    layer_.given.automodel |=
        (section == "model" || section == "dataset") && node.text.starts_with("nemo_automodel.");
    const Target* target = find_target(models_, section, node.text);
    if (!target) {
      // Rules skip the fields that the class's arguments would have set.
      diagnostics_.distrust(section == "validation_dataset" ? "dataset.validation"
                            : section == "model.config"     ? "model"
                                                            : section);
      return diagnostics_.add_at(
          Severity::error, location, section.empty() ? "_target_" : section + "._target_",
          fmt::format("mtrain runs no Python and does not know {}", describe(node)),
          native_way(section));
    }
    layer_.given.classes.insert_or_assign(section, node.text);
    layer_.given.replaced.push_back({.what = section + "._target_"});
    if (!target->warning.empty())
      diagnostics_.add_at(Severity::warning, location, section + "._target_",
                          std::string(target->warning), "");
    for (const FieldText& field : target->sets)
      layer_.add_text(field.path, section + "._target_", location, field.text);
    for (const FieldText& field : target->defaults) {
      Node value;
      if (parse_yaml(std::string(field.text), "default", diagnostics_, value))
        layer_.given.defaults.insert_or_assign(
            std::string(field.path), RawSetting{find_row(field.path), section + "._target_",
                                                location, std::move(value), Origin::derived});
    }
  }

  // A model provider decides the architecture. All other classes of Megatron only hold fields.
  void apply_megatron_class(const std::string& section, const SourceLocation& location,
                            const Node& node) {
    if (section != "model") return;
    if (const auto architecture = megatron_architecture(models_, node.text))
      return layer_.add_text("model.architecture", "model._target_", location,
                             enum_name(*architecture));
    diagnostics_.distrust("model");
    diagnostics_.add_at(Severity::error, location, "model._target_",
                        fmt::format("models of {} are not supported", describe(node)),
                        native_way("model"));
  }

  // Skips a key of a class that mtrain does not know, or of a Megatron class if it is off. Returns
  // false if the key must be reported.
  bool swallow(const std::string& path, const SourceLocation& location, const Node& node) {
    if (unknown_ == Unknown::pass) return true;
    if (node.kind == Node::Kind::map && !node.items.empty()) {
      collect(node, path, unknown_);
      return true;
    }
    return reports_.count_off(location, node);
  }

  const ModelSource& models_;
  Diagnostics& diagnostics_;
  LayerSettings layer_;
  KeyReports reports_{layer_};
  Unknown unknown_ = Unknown::refuse;
};

}  // namespace

std::string normalize_path(std::string_view path) {
  std::string out = normalize_key(path);
  if (out.starts_with("cfg.")) out.erase(0, 4);
  if (out.starts_with("model.config.")) out.erase(6, 7);
  for (const auto& [old, section] : kOlderSections)
    if (out == old || (out.starts_with(old) && out[old.size()] == '.'))
      out.replace(0, old.size(), section);
  // NeMo 2's strategy has Megatron's sizes beside its own settings.
  if (const std::string strategy = "strategy."; out.starts_with(strategy))
    if (const std::string field = "model." + out.substr(strategy.size());
        find_row(field) || find_foreign_key(field))
      return field;
  return out;
}

RawSettings flatten_fields(const ModelSource& models, const Node& root, Origin origin,
                           Diagnostics& diagnostics) {
  TreeWalk walk(models, diagnostics, origin);
  walk.collect_root(root);
  return walk.take();
}

std::string path_of_argument(const ModelSource& models, const RawSettings& given,
                             const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return path;
  const auto known = given.classes.find(std::string_view(path).substr(0, dot));
  return known == given.classes.end()
             ? path
             : field_of_argument(models, known->first, known->second, path);
}

RawSettings flatten_override(const ModelSource& models, const std::string& path,
                             const SourceLocation& location, const Node& value,
                             Diagnostics& diagnostics) {
  TreeWalk walk(models, diagnostics, Origin::command_line);
  if (path.find('.') == std::string::npos)
    walk.set_word(path, location, value);
  else
    walk.set(path, location, value);
  return walk.take();
}

}  // namespace mtrain::recipe
