#include <algorithm>
#include <initializer_list>
#include <string_view>

#include <fmt/core.h>

#include "recipe/recipe.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {

Origin Recipe::origin(std::string_view path) const {
  const auto at = origins.find(path);
  return at == origins.end() ? Origin::by_default : at->second;
}

bool Recipe::given(std::string_view path) const {
  const Origin o = origin(path);
  return o == Origin::recipe || o == Origin::command_line;
}

bool Recipe::written_in(std::string_view path, std::string_view section) const {
  const auto at = spellings.find(path);
  return at != spellings.end() && at->second.size() > section.size() &&
         at->second.starts_with(section) && at->second[section.size()] == '.';
}

bool Recipe::written_as(std::string_view path, std::string_view spelling) const {
  const auto at = spellings.find(path);
  return at != spellings.end() && at->second == spelling;
}

bool Recipe::given_section(std::string_view path) const {
  if (sections.count(path)) return true;
  const std::string below = std::string(path) + ".";
  const auto at = origins.lower_bound(below);
  for (auto i = at; i != origins.end() && i->first.rfind(below, 0) == 0; ++i)
    if (i->second == Origin::recipe || i->second == Origin::command_line) return true;
  return false;
}

bool Recipe::steps_known() const {
  return !train.epochs || origin("train.steps") == Origin::derived;
}

namespace {
const char* origin_name(Origin origin) {
  switch (origin) {
    case Origin::by_default: return "default";
    case Origin::recipe: return "recipe";
    case Origin::command_line: return "override";
    case Origin::derived: return "derived";
  }
  return "?";
}

// Returns the origin of the value, and its references. Those of launch.env are in its value.
std::string origin_text(const SchemaRow& row, const Recipe& r) {
  const std::string who = origin_name(r.origin(row.path));
  if (row.path == "train.steps" && r.train.epochs)
    return fmt::format("{}, by train.epochs={:g}", who, *r.train.epochs);
  const auto reference = r.references.find(row.path);
  if (reference == r.references.end() || row.path == "launch.env") return who;
  const std::string line = reference->second.substr(0, reference->second.find_first_of("\r\n"));
  return fmt::format("{}, by {}", who, line);
}

// Whether it is a recipe of AutoModel, whose scheduler waits for the number of steps. The printed
// recipe must then be one of AutoModel, too.
bool waits_for_steps(const Recipe& r) { return r.automodel && !r.steps_known(); }

// Returns whether the recipe's layout and strategy read the field. Other fields are not printed,
// since loading the text would refuse them or warn about them.
bool in_force(const SchemaRow& row, const Recipe& r) {
  const auto below = [&](const char* section) { return row.path.rfind(section, 0) == 0; };
  if (below("distributed.pipeline.") && r.distributed.pp_size == 1) return false;
  if (below("distributed.moe.") && r.distributed.ep_size == 1) return false;
  if (row.path == "model.moe.token_dispatcher" && r.distributed.ep_size == 1) return false;
  // The mere presence of this section changes the size of buckets.
  if (below("comm_overlap.") && !r.given_section("comm_overlap")) return false;
  if (r.mixed_precision.name != Precision::fp16_mixed)
    for (const char* field :
         {"mixed_precision.initial_loss_scale", "mixed_precision.min_loss_scale",
          "mixed_precision.loss_scale_window", "mixed_precision.hysteresis"})
      if (row.path == field) return false;
  if (!r.mixed_precision.first_last_layers_bf16)
    for (const char* field : {"mixed_precision.num_layers_at_start_in_bf16",
                              "mixed_precision.num_layers_at_end_in_bf16"})
      if (row.path == field) return false;
  // Once the data are counted, one of the two sets the length of the run.
  if (row.path == "train.steps" && !r.steps_known() && !r.given("train.steps")) return false;
  if (row.path == "train.epochs" && r.steps_known()) return false;
  // They follow from the number of steps (derive_automodel_schedule()).
  if (waits_for_steps(r) && r.given_section("lr_scheduler") && !r.given(row.path))
    for (const char* field :
         {"lr_scheduler.warmup_steps", "lr_scheduler.init_lr", "lr_scheduler.min_lr"})
      if (row.path == field) return false;
  for (const auto& [section, samples] :
       {std::pair("dataset.train_samples.", &r.dataset.train_samples),
        std::pair("dataset.validation_samples.", &r.dataset.validation_samples)})
    if (below(section) && !samples->on()) return false;
  // Without multi-token prediction, the rules warn about its settings.
  if (r.model.mtp_num_layers == 0)
    for (const char* field :
         {"model.mtp_num_layers", "model.mtp_loss_scaling_factor", "model.mtp_use_repeated_layer"})
      if (row.path == field) return false;
  // Earlier versions read the printed recipes of checkpoints, and do not know these fields.
  if (row.path == "model.ignore_keys" && r.model.ignore_keys.empty()) return false;
  for (const char* field :
       {"distributed.pipeline.account_for_embedding", "distributed.pipeline.account_for_loss",
        "distributed.pipeline.first_rank_layers", "distributed.pipeline.last_rank_layers",
        "checkpoint.keep_best", "dataset.form", "dataset.cache_dir"})
    if (row.path == field && row.show(r) == row.show_default()) return false;
  if (row.path == "lr_scheduler.init_lr" && r.lr_scheduler.init_lr == 0 && !waits_for_steps(r))
    return false;
  if (row.path == "distributed.pipeline.pp_schedule" && r.distributed.pipeline.pp_schedule_csv)
    return false;
  return belongs_to_strategy(row, r);
}

// Returns the value, or `auto` if it was derived from this machine: the recipe may be read on a
// different one.
std::string shown(const SchemaRow& row, const Recipe& r) {
  const bool machine = row.path == "train.device" || row.path == "hardware.gpu";
  return machine && r.origin(row.path) == Origin::derived ? row.show_default() : row.show(r);
}

// AutoModel's name of the local batch has a different meaning with a pipeline; therefore it is
// kept.
bool keeps_name(const SchemaRow& row, const Recipe& r) {
  return row.path == "train.micro_batch_size" && r.distributed.pp_size > 1 &&
         r.written_as(row.path, "step_scheduler.local_batch_size");
}

// Prints the rows that `printed` accepts.
template <class Printed>
std::string print_rows(const Recipe& recipe, bool origins, const Printed& printed) {
  std::string out;
  std::string named;  // the values that keep the name under which they were written
  std::string open;   // the section whose keys are being printed, with a dot at its end
  for (const auto& row : schema_rows()) {
    if (!printed(row) || !in_force(row, recipe)) continue;
    if (keeps_name(row, recipe)) {
      named += fmt::format("step_scheduler:\n  local_batch_size: {}\n", row.show(recipe));
      continue;
    }
    const std::string section = row.path.substr(0, row.path.rfind('.') + 1);
    // Rows of a section are contiguous: a new section needs only its own headings.
    if (section != open) {
      size_t dot = 0;
      for (int depth = 0; (dot = section.find('.', dot)) != std::string::npos; ++depth, ++dot) {
        const std::string path = section.substr(0, dot);
        if (open.rfind(path + ".", 0) == 0) continue;
        const auto name =
            path.substr(path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1);
        out += fmt::format("{:{}}{}:\n", "", 2 * depth, name);
      }
      open = section;
    }
    const auto depth = std::count(section.begin(), section.end(), '.');
    std::string line = fmt::format("{:{}}{}: {}", "", 2 * depth, row.path.substr(section.size()),
                                   shown(row, recipe));
    if (origins) line = fmt::format("{:<52}  # {}", line, origin_text(row, recipe));
    out += line + "\n";
  }
  return out + named;
}
}  // namespace

std::string print_recipe(const Recipe& recipe, bool origins) {
  return (waits_for_steps(recipe) ? "recipe: AutoModel\n" : "") +
         print_rows(recipe, origins, [](const SchemaRow&) { return true; });
}

std::string print_sections(const Recipe& recipe, std::initializer_list<std::string_view> sections) {
  return print_rows(recipe, false, [&](const SchemaRow& row) {
    return std::ranges::count(sections, std::string_view(row.path).substr(0, row.path.find('.'))) >
           0;
  });
}

}  // namespace mtrain::recipe
