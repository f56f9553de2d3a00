#include "plan/saved_recipe.h"

#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "recipe/adapters.h"
#include "recipe/model_spec.h"
#include "recipe/schema/schema.h"

namespace mtrain::plan {

namespace {

// A printed recipe has every size of the model, so the folder of model.from may be gone. It has
// been run already, so debug.strict must not refuse it. Its environment variables belong to that
// run.
const std::vector<std::string> kAsSaved{"~model.from", "~launch.env", "~debug.fault",
                                        "debug.strict=false"};

// These settings spread a model over ranks. The strategy's precision stays as it was saved.
const std::vector<std::string> kOneRank{"~distributed.tp_size",
                                        "~distributed.pp_size",
                                        "~distributed.cp_size",
                                        "~distributed.ep_size",
                                        "~distributed.expert_tp_size",
                                        "~distributed.dp_size",
                                        "~distributed.dp_replicate_size",
                                        "~distributed.vpp_size",
                                        "~distributed.pipeline",
                                        "~distributed.sequence_parallel",
                                        "~distributed.hierarchical_context_parallel_sizes",
                                        "~comm_overlap"};

constexpr const char* kTrainingData = "dataset.train";

// By default the recipe is checked for the smallest world that fits. It did fit the ranks that
// saved it.
Recipe load_saved(const recipe::ModelSource& models, const SavedRecipe& saved,
                  std::vector<std::string> settings = {}, int64_t world = 0) {
  Diagnostics diagnostics;
  settings.insert(settings.begin(), kAsSaved.begin(), kAsSaved.end());
  const std::string name = saved.file.string();
  Recipe recipe =
      saved.text.empty()
          ? load_recipe(models, name, settings, diagnostics, world, saved.machine)
          : load_recipe_text(models, saved.text, name, settings, diagnostics, world, saved.machine);
  diagnostics.throw_if_errors();
  // Recipes that were printed before model.attention_bias existed call the tanh form gelu.
  if (!recipe.given("model.attention_bias") && recipe.model.activation == recipe::Activation::gelu)
    recipe.model.activation = recipe::Activation::gelu_tanh;
  return recipe;
}

bool must_agree(const std::string& path) {
  static const std::set<std::string> single{"train.seed",
                                            "dataset.seq_length",
                                            kTrainingData,
                                            "dataset.train_weights",
                                            "dataset.split",
                                            "dataset.seed",
                                            "packed_sequence.packed_sequence_size",
                                            "packed_sequence.packing_strategy",
                                            "packed_sequence.max_packs",
                                            "packed_sequence.drop_long_samples"};
  // The checkpoint's tensors decide the vocabulary, and the weights are initialised already. How
  // tokens travel to their experts belongs to the layout. How strongly loads are balanced and
  // further tokens count may change, as a learning rate may.
  for (const char* free :
       {"model.vocab_size", "model.init_method_std", "model.init", "model.moe.token_dispatcher",
        "model.moe.shared_expert_overlap", "model.moe.pad_expert_input_to_capacity",
        "model.moe.aux_loss_coeff", "model.moe.z_loss_coeff", "model.moe.router_bias_update_rate",
        "model.moe.router_bias", "model.mtp_loss_scaling_factor"})
    if (path == free) return false;
  return path.starts_with("model.") || (path.starts_with("peft.") && path != "peft.dropout") ||
         single.count(path);
}

// Whether this setting makes the run keep state in its checkpoints: biases of routers, the loads of
// the previous batch, or Muon's momentum. False for all other settings.
bool keeps_state(const std::string& path, const Recipe& r) {
  if (path == "optimizer.name") return r.optimizer.name == recipe::OptimizerName::muon;
  const spec::ModelSpec model = recipe::model_spec(r.model, 0, sample_length(r));
  const spec::Experts* experts = model.experts();
  if (!experts) return false;
  if (path.starts_with("model.moe.router_bias")) return experts->bias;
  return path == "model.moe.aux_loss_coeff" && experts->loss_coeffs.global > 0;
}

// Into how many parts Muon divides matrices, each of which it updates by itself; none if this
// setting does not decide that.
std::optional<int64_t> matrix_parts(const std::string& path, const Recipe& r) {
  if (r.optimizer.name != recipe::OptimizerName::muon ||
      r.optimizer.muon.tp_mode != recipe::MuonTpMode::blockwise)
    return {};
  const auto& d = r.distributed;
  if (path == "distributed.tp_size") return d.tp_size;
  if (path == "distributed.expert_tp_size" && r.model.moe.num_experts > 0)
    return d.expert_tp_size.value_or(d.tp_size);
  return {};
}

// Returns the settings that differ, except the skipped ones.
std::vector<SettingDifference> differences_of(const Recipe& a, const Recipe& b,
                                              const std::set<std::string>& skipped) {
  std::vector<SettingDifference> differences;
  for (const recipe::SchemaRow& row : recipe::schema_rows())
    if (row.show(a) != row.show(b) && !skipped.count(row.path))
      differences.push_back({row.path, row.show(a), row.show(b)});
  return differences;
}

// Where a run writes, and which checkpoint it loads.
const std::set<std::string> kOfFiles{"train.run_dir",   "train.tensorboard_dir",
                                     "checkpoint.load", "checkpoint.dir",
                                     "debug.trace",     "debug.trace_steps"};

// Loads the printed recipe of this run.
std::optional<Recipe> read_present(const recipe::ModelSource& models, const std::string& text) {
  Diagnostics diagnostics;
  auto now = read_recipe_text(models, text, "this run's recipe", kAsSaved, diagnostics);
  MT_CHECK(now && !diagnostics.has_errors(), "a printed recipe does not load: {}",
           diagnostics.text(recipe::Severity::error));
  return now;
}

}  // namespace

std::string SavedRecipe::read() const { return text.empty() ? read_file(file) : text; }

SavedRun read_saved_run(const recipe::ModelSource& models, const SavedRecipe& recipe) {
  const Recipe r = load_saved(models, recipe);
  spec::ModelSpec model = recipe::model_spec(r.model, 0, sample_length(r));
  model.lora = recipe::adapters_of(r.peft, r.model, model);
  return {.folders = folder_options(r),
          .tokenizer = tokenizer_options(r),
          .model = std::move(model),
          .sample_length = sample_length(r),
          .global_batch_size = r.train.global_batch_size,
          .validation_steps =
              r.dataset.validation.empty() ? std::nullopt : std::optional(r.validation.steps),
          .device = device_plan_without_overlap(r)};
}

RunPlan saved_run_plan(const recipe::ModelSource& models, const SavedRecipe& recipe,
                       std::vector<std::string> overrides, int64_t world, int64_t vocab) {
  if (world == 1) overrides.insert(overrides.begin(), kOneRank.begin(), kOneRank.end());
  return make_plan(load_saved(models, recipe, std::move(overrides), world), world, vocab);
}

std::string resume_differences(const recipe::ModelSource& models, const SavedRecipe& recipe,
                               const std::string& present, bool data_compared) {
  const Recipe saved = load_saved(models, recipe);
  const auto now = read_present(models, present);
  std::string differences;
  for (const recipe::SchemaRow& row : recipe::schema_rows())
    if (row.show(saved) != row.show(*now) && !(data_compared && row.path == kTrainingData) &&
        (must_agree(row.path) || keeps_state(row.path, saved) != keeps_state(row.path, *now)))
      differences +=
          fmt::format("\n  {}: saved with {}, now {}", row.path, row.show(saved), row.show(*now));
    else if (const auto before = matrix_parts(row.path, saved),
             after = matrix_parts(row.path, *now);
             before && after && *before != *after)
      differences += fmt::format(
          "\n  {}: saved with {}, now {}; with optimizer.muon.tp_mode blockwise each size is "
          "another optimizer, and with gathered all are the same",
          row.path, *before, *after);
  return differences;
}

std::string resume_changes(const recipe::ModelSource& models, const SavedRecipe& recipe,
                           const std::string& present) {
  const Recipe saved = load_saved(models, recipe);
  const auto now = read_present(models, present);
  std::set<std::string> skipped = kOfFiles;
  skipped.insert({"model.from", kTrainingData, "dataset.validation"});
  std::string changes;
  for (const SettingDifference& d : differences_of(saved, *now, skipped))
    changes += fmt::format("{}{} {} -> {}", changes.empty() ? "" : ", ", d.path, d.a, d.b);
  return changes;
}

SavedComparison compare_saved(const recipe::ModelSource& models, const SavedRecipe& a,
                              const SavedRecipe& b) {
  const Recipe of_a = load_saved(models, a), of_b = load_saved(models, b);
  const auto fp32 = [](const Recipe& r) {
    return r.mixed_precision.name == recipe::Precision::fp32;
  };
  return {.differences = differences_of(of_a, of_b, kOfFiles), .fp32 = fp32(of_a) && fp32(of_b)};
}

}  // namespace mtrain::plan
