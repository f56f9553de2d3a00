// Merges layers of recipes. A later value that stands for several fields replaces all of them. A
// value for a part of a field keeps the other parts of the layer below. Null resets a field.
#include <algorithm>

#include <fmt/core.h>

#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

// A name whose value replaces more than its own field. RawSettings::drop() reads the two lists.
struct Compound {
  std::string_view name;                              // a field, or one of its spellings
  std::vector<std::string_view> own = {};             // dropped from all earlier layers
  std::vector<std::string_view> others = {};          // dropped, except from earlier overrides
  bool (*when)(const RawSetting& setting) = nullptr;  // null: any value that is set
};

bool is_not_full(const RawSetting& g) {
  Recipe r;
  ValueError ignored;
  return g.row->ops->read(g.node, g.row->options, g.row->at(r), ignored) &&
         r.recompute.granularity != RecomputeGranularity::full;
}

const std::vector<Compound>& compounds() {
  static const std::vector<Compound> list{
      // A preset, the name of a precision, or the type of the weights sets the precision.
      {.name = "mixed_precision.name",
       .own = {"mixed_precision"},
       .others = {"mixed_precision.params_dtype", "distributed.mp_policy.param_dtype"}},
      {.name = "mixed_precision.params_dtype",
       .others = {"mixed_precision.name", "distributed.mp_policy.param_dtype"}},
      {.name = "distributed.mp_policy.param_dtype",
       .others = {"mixed_precision.name", "mixed_precision.params_dtype"}},
      {.name = "mixed_precision.grad_reduce_in_fp32",
       .others = {"distributed.mp_policy.reduce_dtype"}},
      {.name = "distributed.mp_policy.reduce_dtype",
       .others = {"mixed_precision.grad_reduce_in_fp32"}},
      // Another class removes the defaults of the earlier class.
      {.name = "optimizer.name", .own = {"class optimizer"}},
      {.name = "model.architecture", .own = {"class model"}},
      // Only full recomputation has a method and a number of layers.
      {.name = "recompute.granularity",
       .others = {"recompute.method", "recompute.num_layers"},
       .when = is_not_full},
      {.name = "distributed.activation_checkpointing",
       .others = {"recompute.method", "recompute.num_layers", "recompute.modules"}},
      // A list replaces a blend and its shares. Under another system's name it also replaces shares
      // that were set by themselves.
      {.name = "dataset.train",
       .own = {"dataset.train", "dataset.data_path", "dataset.paths", "dataset.paths.train",
               "dataset.train_samples.*"}},
      {.name = "dataset.validation",
       .own = {"dataset.validation", "dataset.valid", "validation_dataset.paths",
               "dataset.validation_samples.*", "validation_dataset.paths.validation"}},
      {.name = "dataset.train_samples.format", .own = {"dataset.train"}},
      {.name = "dataset.validation_samples.format", .own = {"dataset.validation"}},
      {.name = "dataset.data_path", .others = {"dataset.train_weights"}},
      {.name = "dataset.paths", .others = {"dataset.train_weights"}},
      {.name = "validation_dataset.paths", .others = {"dataset.validation_weights"}},
      // Pairs of settings for the same thing. Within one layer rules compare them.
      {.name = "model.moe.layer_freq",
       .others = {"model.moe.sparse_step", "model.moe.first_dense_layers",
                  "model.moe.dense_layers"}},
      {.name = "model.moe.sparse_step", .others = {"model.moe.layer_freq"}},
      {.name = "model.moe.first_dense_layers", .others = {"model.moe.layer_freq"}},
      {.name = "model.moe.dense_layers", .others = {"model.moe.layer_freq"}},
      {.name = "model.moe.num_shared_experts",
       .others = {"model.moe.shared_expert_ffn_hidden_size"}},
      {.name = "model.moe.shared_expert_ffn_hidden_size",
       .others = {"model.moe.num_shared_experts"}},
      {.name = "train.steps", .others = {"train.epochs"}},
      {.name = "train.epochs", .others = {"train.steps"}},
      {.name = "distributed.vpp_size", .others = {"distributed.pipeline.layers_per_stage"}},
      {.name = "distributed.pipeline.layers_per_stage", .others = {"distributed.vpp_size"}},
      {.name = "distributed.pipeline.pp_schedule",
       .others = {"distributed.pipeline.pp_schedule_csv"}},
      {.name = "distributed.pipeline.pp_schedule_csv",
       .others = {"distributed.pipeline.pp_schedule"}}};
  return list;
}

bool lies_below(std::string_view path, std::string_view section) {
  return path.starts_with(section) &&
         (path.size() == section.size() || path[section.size()] == '.');
}

// Merges mappings key by key; any other value replaces the one below.
Node merged(Node below, Node over) {
  if (below.kind != Node::Kind::map || over.kind != Node::Kind::map) return over;
  for (size_t i = 0; i < over.keys.size(); ++i) {
    const auto same = std::ranges::find(below.keys, over.keys[i].name, &Node::Key::name);
    if (same == below.keys.end()) {
      below.keys.push_back(over.keys[i]);
      below.items.push_back(std::move(over.items[i]));
    } else {
      Node& item = below.items[size_t(same - below.keys.begin())];
      item = merged(std::move(item), std::move(over.items[i]));
    }
  }
  below.location = over.location;
  return below;
}

// Merges keys of a list's only item into it. Returns false if the list has several items.
bool merge_into_only_item(const RawSetting& below, RawSetting& over, Diagnostics& diagnostics) {
  if (below.node.items.size() > 1) {
    const std::string key = over.node.keys.front().name;
    diagnostics.add_at(
        Severity::error, over.location, below.row->path,
        fmt::format("`{}.{}` may mean each of {} items", below.row->path, key,
                    below.node.items.size()),
        fmt::format("write the full list: {}=[{{{}: ...}}, ...]", below.row->path, key));
    return false;
  }
  if (below.node.items.empty()) return true;
  Node list = below.node;
  list.items.front() = merged(std::move(list.items.front()), std::move(over.node));
  over.node = std::move(list);
  return true;
}

}  // namespace

std::string part_key(const ForeignSpelling& name) {
  return fmt::format("{}<{}", name.target, name.path);
}

void note_replaced(const RawSetting& setting, RawSettings& layer) {
  // The full value replaces the parts in the layers below, even if it is null.
  for (const ForeignSpelling& name : foreign_spellings())
    if (name.part != Part::all && name.target == setting.row->path)
      layer.replaced.push_back({.what = part_key(name)});
  for (const Compound& compound : compounds()) {
    if ((compound.name != setting.row->path && compound.name != setting.spelling) ||
        (compound.when ? !compound.when(setting) : setting.node.unset()))
      continue;
    for (const std::string_view what : compound.own)
      layer.replaced.push_back({.what = std::string(what)});
    for (const std::string_view what : compound.others)
      layer.replaced.push_back({.what = std::string(what), .leaves_overrides = true});
  }
}

bool RawSettings::drop(std::string_view what, bool leave_overrides) {
  if (what.starts_with("class "))
    return std::erase_if(defaults, [&](const auto& entry) {
             return lies_below(entry.first, what.substr(6));
           }) > 0;
  const bool section = what.ends_with(".*");
  if (section) what.remove_suffix(2);
  const auto hit = [&](std::string_view path) {
    return section ? lies_below(path, what) : path == what;
  };
  const auto of_entry = [&](const auto& entry) {
    return (hit(entry.first) || hit(entry.second.spelling)) &&
           !(leave_overrides && entry.second.origin == Origin::command_line);
  };
  // A field that is reset keeps the default of its class.
  const auto of_class = [&](const auto& entry) {
    return (section && hit(entry.first)) || hit(entry.second.spelling);
  };
  const size_t gone = std::erase_if(fields, of_entry) + std::erase_if(defaults, of_class);
  if (section) std::erase_if(sections, hit);
  return gone > 0;
}

void RawSettings::merge(RawSettings&& over, Diagnostics& diagnostics) {
  for (const Replaced& r : over.replaced)
    if (drop(r.what, r.leaves_overrides) && r.location.known())
      diagnostics.add_at(Severity::resolved, r.location, r.what.substr(0, r.what.size() - 2),
                         "null resets what has been set here before");
  for (auto& [path, field] : over.fields) {
    const auto below = fields.find(path);
    if (below != fields.end() && field.of_only_item &&
        below->second.node.kind == Node::Kind::list) {
      if (!merge_into_only_item(below->second, field, diagnostics)) continue;
    } else if (below != fields.end()) {
      field.node = merged(below->second.node, std::move(field.node));
    }
    fields.insert_or_assign(path, std::move(field));
  }
  for (auto& [path, field] : over.defaults) defaults.insert_or_assign(path, std::move(field));
  for (auto& [path, value] : over.foreign) foreign.insert_or_assign(path, value);
  sections.merge(over.sections);
  // Data under mtrain's own name have no arguments of the class that a layer below names.
  if (over.fields.contains("dataset.train")) classes.erase("dataset");
  if (over.fields.contains("dataset.validation")) classes.erase("validation_dataset");
  for (auto& [section, name] : over.classes) classes.insert_or_assign(section, name);
  automodel |= over.automodel;
}

}  // namespace mtrain::recipe
