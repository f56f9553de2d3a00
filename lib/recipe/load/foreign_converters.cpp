#include "recipe/load/foreign_converters.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "recipe/load/data_names.h"
#include "recipe/load/list_expression.h"
#include "recipe/load/sample_targets.h"

namespace mtrain::recipe {
namespace {

void apply_preset(LayerSettings& layer, const PrecisionPreset& preset,
                  const SourceLocation& location, const Node& node) {
  layer.given.replaced.push_back({.what = "mixed_precision.*", .leaves_overrides = true});
  for (const auto& [path, text] : preset.sets)
    layer.add_text(path, "mixed_precision", location, text);
  if (!preset.left_out.empty())
    layer.diagnostics.add_at(Severity::warning, location, "mixed_precision",
                             fmt::format("`{}`: {}", node.text, preset.left_out));
}

void set_data(LayerSettings& layer, const SchemaRow& row, const std::string& path,
              const SourceLocation& location, const Node& node);

// Sets data from MegatronPretraining's `paths: {train: ..., validation: ...}`.
void set_part_of_paths(LayerSettings& layer, const SchemaRow& row, const std::string& path,
                       const SourceLocation& location, const Node& node) {
  const bool train = row.path == "dataset.train";
  const std::vector<std::string_view> names =
      train ? std::vector<std::string_view>{"train"}
            : std::vector<std::string_view>{"validation", "valid", "val", "dev"};
  for (size_t i = 0; i < node.keys.size(); ++i)
    if (std::ranges::count(names, node.keys[i].name) > 0)
      return set_data(layer, row, fmt::format("{}.{}", path, names[0]), location, node.items[i]);
  layer.diagnostics.add_at(Severity::error, location, path, fmt::format("has no `{}`", names[0]),
                           "write {train: PREFIXES, validation: PREFIXES}");
}

// Sets data from a JSON file that has what MegatronPretraining's `paths` may be.
void set_data_of_file(LayerSettings& layer, const SchemaRow& row, const std::string& path,
                      const SourceLocation& location, const std::string& file) {
  Node content;
  try {
    if (!parse_json(read_file(file), file, layer.diagnostics, content)) return;
  } catch (const Error& e) {
    return layer.diagnostics.add_at(Severity::error, location, path, e.message(), e.hint());
  }
  if (content.kind == Node::Kind::scalar)
    return layer.diagnostics.add_at(Severity::error, location, path,
                                    fmt::format("{} has neither a list nor an object", file),
                                    "write [0.3, PREFIX, 0.7, PREFIX] or {\"train\": [PREFIX]}");
  set_data(layer, row, path, location, content);
}

// Sets a list of data sets. If it is a blend, also sets their shares.
void set_data(LayerSettings& layer, const SchemaRow& row, const std::string& path,
              const SourceLocation& location, const Node& node) {
  if (path == "dataset.paths" || path == "validation_dataset.paths") {
    if (node.kind == Node::Kind::map) return set_part_of_paths(layer, row, path, location, node);
    if (node.kind == Node::Kind::scalar && node.text.ends_with(".json"))
      return set_data_of_file(layer, row, path, location, node.text);
  }
  ValueError wrong;
  const std::optional<Blend> blend = read_blend(node, path != row.path, wrong);
  if (!wrong.reason.empty()) {
    layer.diagnostics.set_location(row.path, location);
    return layer.diagnostics.add_at(Severity::error, location, row.path, wrong.reason, wrong.hint);
  }
  layer.add(&row, path, location, blend ? blend->prefixes : node);
  if (blend) layer.add(find_row(row.path + "_weights"), path, location, blend->shares);
}

bool read_window(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                 Node& node) {
  ValueError wrong;
  if (read_window_pair(node, wrong)) return true;
  layer.diagnostics.set_location("model.window_size", location);
  layer.diagnostics.add_at(Severity::error, location, path, wrong.reason, wrong.hint);
  return false;
}

// Sets the field that a variable of Megatron-Bridge's env_vars decides. Returns false if it decides
// none. No message quotes the value: other variables may be secrets, and a name can be mistyped.
bool take_launch_setting(LayerSettings& layer, const std::string& path,
                         const SourceLocation& location, Node value) {
  const auto& names = foreign_spellings();
  const auto name = std::ranges::find(names, path, &ForeignSpelling::path);
  if (name == names.end()) return false;
  value.quoted = false;
  const bool number = value.kind == Node::Kind::scalar && is_integer_text(value.text);
  if (!number && !value.unset() && value.text.find("${") == std::string::npos)
    layer.diagnostics.add_at(Severity::error, location, path, "is not a whole number",
                             fmt::format("write a number, as for {}", name->target));
  else if (name->part == Part::all)
    layer.add(find_row(name->target), path, location, std::move(value));
  else
    layer.add_part(*name, location, std::move(value));
  return true;
}

// Adds variables for the ranks to those that this layer has set under any name.
void add_variables(LayerSettings& layer, const std::string& spelling,
                   const SourceLocation& location, const Node& variables) {
  const SchemaRow* row = find_row("launch.env");
  Node all = variables;
  if (auto before = layer.given.fields.find(row->path);
      before != layer.given.fields.end() && before->second.node.kind == Node::Kind::map) {
    all = std::move(before->second.node);
    layer.given.fields.erase(before);
    for (size_t i = 0; i < variables.keys.size(); ++i) {
      const Node::Key& key = variables.keys[i];
      const auto same = std::ranges::find(all.keys, key.name, &Node::Key::name);
      if (same == all.keys.end()) {
        all.keys.push_back(key);
        all.items.push_back(variables.items[i]);
      } else if (all.items[size_t(same - all.keys.begin())].text != variables.items[i].text) {
        layer.diagnostics.add_at(Severity::error, key.location, row->path,
                                 fmt::format("{} is set twice to different values, at {} and here",
                                             key.name, same->location.str()),
                                 "keep one of them");
      }
    }
  }
  layer.add(row, spelling, location, std::move(all));
}

// Sets variables for the ranks, which a recipe writes as a mapping or, below `launch.env` or
// `env_vars`, one by one. Returns false if `path` names no variables.
bool set_variables(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                   const Node& node) {
  for (const std::string section : {"launch.env", "env_vars"}) {
    Node variables = node;
    if (path.starts_with(section + ".")) {
      variables = Node();
      variables.kind = Node::Kind::map, variables.location = location;
      variables.items = {node};
      variables.keys.push_back({path.substr(section.size() + 1), location});
    } else if (path != section || node.kind != Node::Kind::map) {
      continue;
    }
    for (size_t i = variables.keys.size(); section == "env_vars" && i-- > 0;) {
      const Node::Key key = variables.keys[i];
      if (!take_launch_setting(layer, fmt::format("{}.{}", section, key.name), key.location,
                               variables.items[i]))
        continue;
      variables.keys.erase(variables.keys.begin() + long(i));
      variables.items.erase(variables.items.begin() + long(i));
      if (variables.keys.empty()) return true;
    }
    add_variables(layer, section, location, variables);
    return true;
  }
  return false;
}

void set_layout(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                const Node& node) {
  ValueError wrong;
  const std::string layout = read_stages(node, wrong);
  if (layout.empty())
    return layer.diagnostics.add_at(Severity::error, location, path, wrong.reason, wrong.hint);
  layer.add_text("distributed.pipeline.layout", path, location, layout);
}

void set_te_fp8(LayerSettings& layer, const SourceLocation& location, const Node& node) {
  const std::string path = "model.backend.te_fp8";
  layer.given.replaced.push_back({.what = path});
  ValueError wrong;
  const std::vector<FieldText> fields = read_te_fp8(node, wrong);
  if (!wrong.reason.empty())
    return layer.diagnostics.add_at(Severity::error, location, path, wrong.reason, wrong.hint);
  for (const FieldText& field : fields) layer.add_text(field.path, path, location, field.text);
}

// Sets the fields of `load: {path: FOLDER, or_start: true}`.
void set_load(LayerSettings& layer, const SourceLocation& location, const Node& node) {
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string name = normalize_path(node.keys[i].name);
    const SchemaRow* row = name == "path"       ? find_row("checkpoint.load")
                           : name == "or_start" ? find_row("checkpoint.load_or_start")
                                                : nullptr;
    const SourceLocation& at = node.keys[i].location;
    if (row)
      layer.add(row, "checkpoint.load." + name, at, node.items[i]);
    else
      layer.diagnostics.add_at(Severity::error, at, "checkpoint.load." + name, "is not a key",
                               "write load: {path: FOLDER, or_start: true}");
  }
  if (node.keys.empty())
    layer.diagnostics.add_at(Severity::error, location, "checkpoint.load", "names no path",
                             "write load: {path: FOLDER, or_start: true}");
}

// Refuses a reference, because a value is converted here, before references are replaced.
bool refused_reference(LayerSettings& layer, const std::string& path, std::string_view target,
                       const SourceLocation& location, const Node& node) {
  if (node.text.find("${") == std::string::npos) return false;
  layer.diagnostics.add_at(Severity::error, location, path,
                           "a reference cannot stand under this name, whose values are converted",
                           fmt::format("write it under {}", target));
  return true;
}

// True sets the field to name.on. False only excludes this value.
void set_choice(LayerSettings& layer, const ForeignSpelling& name, const SourceLocation& location,
                const Node& node) {
  const std::string path(name.path);
  const SchemaRow* row = find_row(name.target);
  bool yes = false;
  ValueError wrong;
  if (node.unset()) {
    if (!layer.in_dump) layer.given.replaced.push_back({.what = path});
  } else if (!read_value(node, {}, yes, wrong)) {
    layer.diagnostics.set_location(row->path, location);
    layer.diagnostics.add_at(Severity::error, location, row->path,
                             fmt::format("{} (written as {})", wrong.reason, path), wrong.hint);
  } else if (yes) {
    layer.add(row, path, location, plain_scalar(name.on, location));
  } else {
    layer.add_part(name, location, node);
  }
}

}  // namespace

bool convert_value(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                   Node& node) {
  if (path == "mixed_precision" || path == "mixed_precision.name")
    if (const auto* preset = find_precision_preset(node.text)) {
      apply_preset(layer, *preset, location, node);
      return true;
    }
  if (path == "checkpoint.model_save_format" && node.text == "torch_save") {
    layer.diagnostics.add_at(
        Severity::warning, location, path,
        "torch_save is not written: weights are saved as safetensors, which torch reads, too");
    return true;
  }
  if (path == "distributed.pipeline.module_fqns_per_model_part" && !node.unset()) {
    set_layout(layer, path, location, node);
    return true;
  }
  if (path == "model.backend.te_fp8" || path == "model.backend.te_fp8.recipe") {
    set_te_fp8(layer, location, node);
    return true;
  }
  if (path == "checkpoint.load" && node.kind == Node::Kind::map) {
    set_load(layer, location, node);
    return true;
  }
  // AutoModel's LATEST starts a run if nothing is saved yet.
  if (path == "checkpoint.restore_from" && to_lower(node.text) == "latest") {
    layer.add_text("checkpoint.load", path, location, "latest");
    layer.add_text("checkpoint.load_or_start", path, location, "true");
    return true;
  }
  if (path == "checkpoint.load.path") {
    layer.add(find_row("checkpoint.load"), path, location, node);
    return true;
  }
  // Of Megatron's scopes this one is a setting here; a foreign key reports the others.
  if (path == "model.cuda_graph_scope") {
    const Node& one =
        node.kind == Node::Kind::list && node.items.size() == 1 ? node.items[0] : node;
    if (one.text != "full_iteration") return false;
    layer.add(find_row("train.cuda_graph_scope"), path, location, Node(one));
    return true;
  }
  if (set_samples(layer, path, location, node)) return true;
  if (set_variables(layer, path, location, node)) return true;
  if (path == "model.window_size" || path == "model.sliding_window")
    if (!read_window(layer, path, location, node)) return true;
  if (const SchemaRow* row = find_row(path)) {
    if (row->path == "dataset.train" || row->path == "dataset.validation") {
      set_data(layer, *row, path, location, node);
      return true;
    }
    if (row->path == "dataset.split" || row->path == "dataset.validation_split") read_split(node);
  }
  if (path == "model.moe_layer_freq" || path == "model.no_rope_freq" ||
      path == "model.window_attn_skip_freq")
    expand_list_expression(node);
  return false;
}

bool convert_name(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                  const Node& node) {
  bool found = false;
  for (const ForeignSpelling& name : foreign_spellings()) {
    if (name.path != path) continue;
    found = true;
    if (name.part == Part::all) {
      if (refused_reference(layer, path, name.target, location, node)) return true;
      Node value = node;
      if (value.kind == Node::Kind::scalar) value.text = name.convert(value.text);
      layer.add(find_row(name.target), path, location, std::move(value));
    } else if (name.part == Part::choice) {
      if (refused_reference(layer, path, name.target, location, node)) return true;
      set_choice(layer, name, location, node);
    } else {
      layer.add_part(name, location, node);
    }
  }
  return found;
}

void negate(LayerSettings& layer, const SchemaRow* row, const std::string& path,
            const SourceLocation& location, Node node) {
  if (refused_reference(layer, path, row->path, location, node)) return;
  bool value = false;
  ValueError c;
  if (read_value(node, {}, value, c)) node.text = value ? "false" : "true";
  layer.add(row, path, location, std::move(node));
}

}  // namespace mtrain::recipe
