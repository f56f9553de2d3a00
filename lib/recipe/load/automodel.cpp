#include "recipe/load/automodel.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "recipe/load/layer_settings.h"
#include "recipe/load/targets.h"

namespace mtrain::recipe {
namespace {

// The defaults of AutoModel's StepSchedulerConfig and train_ft. Training stops after max_steps or
// num_epochs, whichever ends first.
const std::vector<FieldText> kDefaults{{"train.global_batch_size", "32"},
                                       {"train.micro_batch_size", "1"},
                                       {"train.epochs", "10"},
                                       {"train.seed", "42"},
                                       {"checkpoint.every_steps", "100"},
                                       {"validation.steps", "0"},
                                       {"optimizer.clip_grad", "1"}};
// Without the section the rate is that of the optimizer, in every step.
const std::vector<FieldText> kWithoutScheduler{{"lr_scheduler.style", "constant"},
                                               {"lr_scheduler.warmup_steps", "0"}};

bool has_section(const RawSettings& given, const std::string& section) {
  if (given.sections.contains(section)) return true;
  const auto field = given.fields.lower_bound(section + ".");
  return field != given.fields.end() && field->first.starts_with(section + ".");
}

}  // namespace

void add_automodel_defaults(RawSettings& given, Diagnostics& diagnostics) {
  if (!given.automodel) return;
  const Recipe own;
  std::string taken;
  const auto add = [&](const FieldText& field) {
    const SchemaRow* row = find_row(field.path);
    const auto at = given.fields.find(field.path);
    if (at != given.fields.end() && !at->second.node.unset()) return;
    const bool known =
        !given.defaults
             .try_emplace(std::string(field.path), RawSetting{row,
                                                              std::string(field.path),
                                                              {},
                                                              plain_scalar(field.text, {}),
                                                              Origin::derived})
             .second;
    if (!known && row->show(own) != field.text)
      taken += fmt::format("{}{}: {}", taken.empty() ? "" : ", ", field.path, field.text);
  };
  // `num_epochs: null` beside max_steps: the epochs do not end the training. Nor do they end one
  // whose steps the command line gives.
  const auto steps = given.fields.find("train.steps");
  const bool endless =
      steps != given.fields.end() &&
      (given.fields.contains("train.epochs") || steps->second.origin == Origin::command_line);
  for (const FieldText& field : kDefaults)
    if (field.path != "train.epochs" || !endless) add(field);
  if (!has_section(given, "lr_scheduler"))
    for (const FieldText& field : kWithoutScheduler) add(field);
  if (!taken.empty()) diagnostics.resolved("recipe", "as AutoModel has it, " + taken);
}

namespace {

// Whether AutoModel's `truncation` asks to cut the rows.
bool truncates(const Recipe& r, const SamplesConfig& samples, const char* cut) {
  const auto spelling = r.spellings.find(cut);
  return samples.cut && spelling != r.spellings.end() && spelling->second.ends_with("truncation");
}

// Without a length AutoModel truncates at the tokenizer's limit, which no shorter row reaches.
// Longer rows than the model has positions for are an error in any case.
void keep_rows_whole(Recipe& r, Diagnostics& diagnostics) {
  if (r.given("dataset.seq_length")) return;
  for (const auto& [samples, name] :
       {std::pair(&r.dataset.train_samples, "dataset.train_samples.cut"),
        std::pair(&r.dataset.validation_samples, "dataset.validation_samples.cut")}) {
    if (!truncates(r, *samples, name)) continue;
    samples->cut = false;
    r.origins[name] = Origin::derived;
    diagnostics.resolved(name, "false: without a length, truncation shortens no row");
  }
}

// Truncation leaves dataset.seq_length tokens of a row, and the last of them is only a label.
void count_inputs_of_cut_rows(Recipe& r, Diagnostics& diagnostics) {
  const char* field = "dataset.seq_length";
  if (!r.given(field) || r.dataset.seq_length < 2 || data_form(r) != DataForm::rows ||
      !(truncates(r, r.dataset.train_samples, "dataset.train_samples.cut") ||
        truncates(r, r.dataset.validation_samples, "dataset.validation_samples.cut")))
    return;
  --r.dataset.seq_length;
  diagnostics.resolved(field, fmt::format("{}: rows are cut at {} tokens, of which the last is a "
                                          "label alone",
                                          r.dataset.seq_length, r.dataset.seq_length + 1));
}

// AutoModel's step_scheduler names the steps between validations in any case.
void leave_out_validation(Recipe& r, Diagnostics& diagnostics) {
  const char* field = "validation.every_steps";
  if (r.validation.every_steps == 0 || !r.dataset.validation.empty() ||
      r.dataset.validation_samples.on() || !r.written_as(field, "step_scheduler.val_every_steps"))
    return;
  r.validation.every_steps = 0;
  r.origins[field] = Origin::derived;
  diagnostics.resolved(field, "0: there is no validation_dataset");
}

// torch's optimizers decay every parameter, also biases and norms.
void decay_all_parameters(Recipe& r, Diagnostics& diagnostics) {
  const char* field = "optimizer.groups";
  const OptimizerConfig& o = r.optimizer;
  if (o.name == OptimizerName::muon || o.weight_decay == 0 || r.given(field) ||
      !r.written_as("optimizer.name", "optimizer._target_"))
    return;
  r.optimizer.groups = {{.match = ".", .weight_decay = o.weight_decay}};
  r.origins[field] = Origin::derived;
  diagnostics.resolved(field, "weight_decay is that of all parameters, as in torch");
}

}  // namespace

void take_automodel_values(Recipe& r, Diagnostics& diagnostics) {
  if (r.automodel) {
    keep_rows_whole(r, diagnostics);
    count_inputs_of_cut_rows(r, diagnostics);
    leave_out_validation(r, diagnostics);
    decay_all_parameters(r, diagnostics);
  }
  const char* backend = "comm.backend";
  if (!r.automodel || r.comm.backend != CommBackend::nccl ||
      !r.written_as(backend, "dist_env.backend"))
    return;
  // All of its recipes name NCCL.
  r.comm.backend = CommBackend::automatic;
  r.origins[backend] = Origin::derived;
  diagnostics.resolved(backend, "auto: NCCL between GPUs, and Gloo between CPUs");
}

void derive_automodel_schedule(Recipe& r, Diagnostics& diagnostics) {
  LrSchedulerConfig& s = r.lr_scheduler;
  if (!r.automodel || !r.given_section("lr_scheduler")) return;
  std::string taken;
  const auto derive = [&](const char* field, auto& value, auto derived) {
    const std::string path = fmt::format("lr_scheduler.{}", field);
    if (r.given(path)) return;
    value = derived;
    r.origins[path] = Origin::derived;
    taken += fmt::format("{}{}: {}", taken.empty() ? "" : ", ", field, derived);
  };
  constexpr int64_t kLongestWarmUp = 1000;
  derive("warmup_steps", s.warmup_steps, std::min(kLongestWarmUp, r.train.steps / 10));
  derive("init_lr", s.init_lr, 0.1 * r.optimizer.lr);
  derive("min_lr", s.min_lr, 0.01 * r.optimizer.lr);
  if (!taken.empty()) diagnostics.resolved("lr_scheduler", "as AutoModel has it, " + taken);
}

}  // namespace mtrain::recipe
