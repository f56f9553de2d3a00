#include "interchange/trained_weights.h"

#include <algorithm>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "interchange/checkpoint_record.h"
#include "interchange/model_source.h"
#include "recipe/adapters.h"
#include "recipe/model_spec.h"
#include "spec/tensors.h"
#include "storage/fingerprint.h"
#include "storage/state.h"

namespace mtrain::interchange {

namespace fs = std::filesystem;

namespace {

// Returns the hash of the base model that the checkpoint records; "" if it records none.
std::string recorded_content(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "state.json";
  std::error_code error;
  if (!fs::exists(file, error)) return "";
  const storage::TrainState state = storage::TrainState::load(file);
  return state.contains(kBaseContent) ? state.text(kBaseContent) : "";
}

void require_base(const fs::path& checkpoint, const fs::path& base, const HfFolder& folder) {
  const std::string trained = recorded_content(checkpoint);
  if (trained.empty()) return warn_of_unrecorded_base(checkpoint, base);
  const std::string found = base_content(folder);
  if (trained != found)
    throw UserError(fmt::format("{} does not have the weights that the adapters of {} were trained "
                                "with: its tensors hash to {}, those of the base model to {}",
                                base.string(), checkpoint.string(), found, trained),
                    "give the folder with which the training began");
}

// `further`: how many layers of multi-token prediction the run has read from the base.
HfFolder open_base(const fs::path& checkpoint, const fs::path& given, bool compare,
                   int64_t further) {
  const recipe::ModelConfig model = recorded_model(checkpoint);
  const fs::path base = given.empty() ? fs::path(model.from.value_or("")) : given;
  if (base.empty())
    throw UserError(fmt::format("{} has adapters alone, and its recipe names no base model",
                                checkpoint.string()),
                    "load the checkpoint unchanged, as mtrain saved it");
  std::error_code error;
  if (!fs::exists(hub_model_folder(base) / "config.json", error))
    throw UserError(
        fmt::format("{} has adapters alone, and their base model {} is gone", checkpoint.string(),
                    base.string()),
        "put the folder back; or name its new place: mtrain generate --model BASE --adapter RUN, "
        "mtrain export hf RUN --base BASE");
  HfFolder folder = open_hf_folder(base, model.ignore_keys, further);
  if (compare) require_base(checkpoint, base, folder);
  return folder;
}

// Requires that the checkpoint has the adapters of its recipe, and no others.
void require_adapters(const storage::CheckpointTensors& file,
                      const std::vector<Adapter>& adapters) {
  std::set<std::string> expected;
  for (const Adapter& a : adapters) expected.insert({a.a, a.b});
  std::vector<std::string> wrong;
  for (const std::string& name : expected)
    if (!file.contains(name)) wrong.push_back(name + " is missing");
  for (const storage::CheckpointTensors::Entry& t : file.entries())
    if (t.name.find(".lora.") != std::string::npos && !expected.count(t.name))
      wrong.push_back(t.name + " is not an adapter of its recipe");
  if (!wrong.empty())
    throw UserError(fmt::format("{}: the adapters are not those of its recipe\n  {}",
                                file.path().string(), fmt::join(wrong, "\n  ")),
                    "load the checkpoint unchanged, as mtrain saved it");
}

}  // namespace

void warn_of_unrecorded_base(const fs::path& checkpoint, const fs::path& base) {
  log::warn(
      fmt::format("{} does not record which base model its adapters were trained with: that {} "
                  "is this model cannot be checked",
                  checkpoint.string(), base.string()));
}

std::string base_content(const HfFolder& folder) {
  std::vector<const storage::SafetensorsReader*> files;
  for (const auto& file : folder.tensors->files()) files.push_back(file.get());
  return storage::tensors_content(files);
}

spec::ModelSpec adapted_model(const recipe::Recipe& r) {
  spec::ModelSpec model = recipe::model_spec(r.model);
  model.lora = recipe::adapters_of(r.peft, r.model, model);
  return model;
}

std::shared_ptr<const storage::ValueSource> TrainedWeights::merged() const {
  if (adapters.empty()) return weights;
  return std::make_shared<MergedWeights>(weights, file, adapters);
}

TrainedWeights open_trained(const fs::path& checkpoint, const fs::path& base, bool compare_base) {
  TrainedWeights t{.file = open_checkpoint_tensors(checkpoint, storage::TensorSet::weights),
                   .weights = {},
                   .adapters = {},
                   .base = {}};
  t.weights = t.file;
  const recipe::Recipe recipe = recorded_recipe(checkpoint, {"~model.from"});
  if (recipe.peft.on()) t.adapters = adapters_of(adapted_model(recipe));
  require_adapters(*t.file, t.adapters);
  if (t.adapters.empty() || t.file->contains("embedding.weight")) return t;
  const int64_t further = recipe::model_spec(recipe.model).mtp.layers();
  const HfFolder folder = open_base(checkpoint, base, compare_base, further);
  t.base = folder.tensors->path().string();
  t.weights = folder.source();
  return t;
}

}  // namespace mtrain::interchange
