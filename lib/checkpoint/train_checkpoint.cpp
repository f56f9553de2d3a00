#include "checkpoint/train_checkpoint.h"

#include <algorithm>
#include <optional>
#include <set>

#include "checkpoint/read_faults.h"
#include "checkpoint/read_weights.h"
#include "checkpoint/state_entries.h"
#include "model/param/param_uploader.h"
#include "model/param/write_weights.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_tensors.h"
#include "storage/file_sums.h"
#include "storage/finite_values.h"
#include "storage/recorded_recipe.h"

namespace mtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kOwnRecipe =
    "load it with the recipe it was saved under (recipe.yaml in the checkpoint's folder is a copy)";
constexpr const char* kOwnCheckpoint = "load the checkpoint unchanged, as mtrain saved it";

std::vector<ReplicatedTensor> replicated_of(const CheckpointParts& t, bool of_model) {
  std::vector<ReplicatedTensor> found;
  for (const ReplicatedTensor& r : t.replicated)
    if (r.of_model == of_model) found.push_back(r);
  return found;
}

// Ranks that own the same elements are often on the same host. They read these once from the disk,
// through the page cache. So do ranks of tensor parallelism, whose columns are in the same blocks.
storage::ReadOptions read_options(const CheckpointParts& t) {
  return {.io_threads = t.io_threads,
          .direct = t.copies.dense.ranks == 1 && t.copies.experts.ranks == 1 &&
                    t.tensor_parallel.size() == 1};
}

// Refuses tensors that are not `used`, or whose type is not one of `types`. An unused tensor in the
// model's file shows that it belongs to a different model, whose other weights have a different
// meaning, too. In the optimizer's file it shows that a different optimizer saved it.
void refuse_unknown_tensors(const storage::CheckpointTensors& file,
                            const std::set<std::string>& used, const std::set<DType>& types,
                            const char* reader) {
  std::vector<std::string> surplus;
  for (const storage::CheckpointTensors::Entry& t : file.entries()) {
    if (!used.count(t.name))
      surplus.push_back(t.name);
    else if (!t.dtype || !types.count(*t.dtype))
      throw UserError(fmt::format("{} is {}, a type that mtrain does not save there",
                                  file.origin(t.name), t.type),
                      kOwnCheckpoint);
  }
  if (surplus.empty()) return;
  constexpr size_t kShown = 3;
  std::string names;
  for (size_t i = 0; i < std::min(kShown, surplus.size()); ++i)
    names += (i ? ", " : "") + surplus[i];
  throw UserError(
      fmt::format("{} has {} tensors that the recipe's {} lacks: {}{}", file.path().string(),
                  surplus.size(), reader, names, surplus.size() > kShown ? ", ..." : ""),
      kOwnRecipe);
}

void refuse_different_run(const recipe::ModelSource& models, const std::string& recipe,
                          const fs::path& folder, const std::optional<std::string>& other_data) {
  const std::string differences =
      plan::resume_differences(models, saved_recipe(folder), recipe, other_data.has_value()) +
      other_data.value_or("");
  if (differences.empty()) return;
  throw UserError(fmt::format("{} belongs to a different run:{}", folder.string(), differences),
                  "a resumed run continues with the same model and data: set these values as they "
                  "were saved, or start a new run with checkpoint.load unset");
}

// Reads the weights of `params`, and the replicated tensors of the model, from a checkpoint. `used`
// names all parameters that it holds.
void load_weights(Stream& stream, model::ParamStore& params, const fs::path& folder,
                  std::set<std::string> used, const std::vector<ReplicatedTensor>& replicated,
                  storage::ReadOptions options, const ReadProgress& progress) {
  const auto file = open_checkpoint_tensors(folder, storage::TensorSet::weights, options);
  const storage::FiniteValues model(*file, storage::FiniteValues::Of::checkpoint);
  const auto saved = [parameters = used](const model::ParamSpec& p) {
    return parameters.count(p.name) > 0;
  };
  for (const ReplicatedTensor& r : replicated) used.insert(r.name);
  // Format 1 has fp32 weights alone.
  std::set<DType> types{DType::f32};
  if (file->path().filename() == storage::kIndexJson) types.insert(DType::bf16);
  refuse_unknown_tensors(*file, used, types, "model");
  read_weights(stream, params, model, saved, kOwnRecipe, progress);
  read_replicated(stream, replicated, model, kOwnRecipe);
}

// Refuses negative values of a state that is never negative: a second moment is a mean of squares.
void refuse_negative(const storage::ValueSource& moments, const std::string& name, int64_t first,
                     int64_t count, const float* values) {
  const float* bad = std::find_if(values, values + count, [](float v) { return v < 0; });
  if (bad == values + count) return;
  throw RunError(fmt::format("{} has {} as element {}, and a second moment is never negative",
                             moments.origin(name), *bad, first + (bad - values)),
                 kOwnCheckpoint);
}

void load_moments(const CheckpointParts& t, const fs::path& folder) {
  const auto file = open_checkpoint_tensors(folder, storage::TensorSet::optimizer, read_options(t));
  const storage::FiniteValues moments(*file, storage::FiniteValues::Of::checkpoint);
  std::set<std::string> used;
  const std::vector<optim::StateTensor> state = t.optimizer.state();
  for (const spec::TensorSpec& p : t.parameters)
    for (const optim::StateTensor& tensor : state)
      if (tensor.values.has(model::part_of(p))) used.insert(p.name + tensor.suffix);
  const std::vector<ReplicatedTensor> replicated = replicated_of(t, false);
  for (const ReplicatedTensor& r : replicated) used.insert(r.name);
  refuse_unknown_tensors(*file, used, {DType::f32, DType::bf16}, "model and optimizer");
  read_replicated(t.compute, replicated, moments, kOwnRecipe);
  std::vector<storage::ExpectedRun> expected;
  for (const model::Parameter* p : t.params.params())
    for (const optim::StateTensor& tensor : state)
      if (tensor.values.has(*p)) add_expected(*p, p->name + tensor.suffix, expected);
  moments.expect(std::move(expected));
  model::ParamUploader uploader(t.compute);
  ReadBytes read(t.params, progress_of(t, "moments"));
  for (const model::Parameter* p : t.params.params()) {
    for (const optim::StateTensor& tensor : state) {
      if (!tensor.values.has(*p)) continue;
      const std::string name = p->name + tensor.suffix;
      require_shape(moments, name, p->full_shape(), kOwnRecipe);
      tensor.values.set(uploader, *p, [&](int64_t first, int64_t count, float* values) {
        moments.read(name, first, count, values);
        if (!tensor.negative) refuse_negative(moments, name, first, count, values);
      });
    }
    read.add(*p);
  }
}

}  // namespace

plan::SavedRecipe saved_recipe(const fs::path& folder) {
  storage::RecordedRecipe recorded = storage::recorded_recipe(folder);
  return {.file = std::move(recorded.file), .text = std::move(recorded.text)};
}

void load_weights(Stream& stream, model::ParamStore& params,
                  const std::vector<ReplicatedTensor>& replicated, const fs::path& folder,
                  const ReadProgress& progress, const std::set<std::string>& unused) {
  std::set<std::string> used = unused;
  for (const model::Parameter* p : params.params()) used.insert(p->name);
  load_weights(stream, params, folder, std::move(used), replicated, {}, progress);
}

TrainProgress read_progress(const recipe::ModelSource& models, const fs::path& folder) {
  const storage::TrainState state = read_state(folder);
  TrainProgress p{.steps_done = state.integer(kStep)};
  // Without the entry `updates`, every step made an update.
  p.updates = state.contains(kUpdates) ? state.integer(kUpdates) : p.steps_done;
  if (p.updates < 0 || p.updates > p.steps_done)
    throw storage::damaged_file(folder / kState,
                                fmt::format("{} updates in {} steps", p.updates, p.steps_done));
  if (state.contains(kSamples)) {
    p.samples = state.integer(kSamples);
    p.updated_samples =
        state.contains(kUpdatedSamples) ? state.integer(kUpdatedSamples) : p.samples;
    if (p.samples < p.steps_done)
      throw storage::damaged_file(folder / kState,
                                  fmt::format("{} samples in {} steps", p.samples, p.steps_done));
    if (p.updated_samples < p.updates || p.updated_samples > p.samples)
      throw storage::damaged_file(
          folder / kState,
          fmt::format("{} samples of {} in {} updates", p.updated_samples, p.samples, p.updates));
  } else {
    const int64_t batch = plan::read_saved_run(models, saved_recipe(folder)).global_batch_size;
    p.samples = p.steps_done * batch, p.updated_samples = p.updates * batch;
  }
  if (state.contains(kLossScale)) p.loss_scale = state.text(kLossScale);
  if (state.contains(kSpikes)) p.spikes = state.text(kSpikes);
  return p;
}

storage::TrainState read_state(const fs::path& folder) {
  const fs::path file = folder / kState;
  return fs::exists(file) ? storage::TrainState::load(file) : storage::TrainState();
}

namespace {

// Runs `read` directly, or through ReadFaults::attempt().
using Attempt = std::function<void(const std::function<void()>& read)>;

storage::TrainState load_model(const CheckpointParts& t, const fs::path& folder,
                               const Attempt& attempt) {
  storage::TrainState state;
  attempt([&] { state = read_state(folder); });
  const auto write = [&] {
    std::set<std::string> used;
    for (const spec::TensorSpec& p : t.parameters) used.insert(p.name);
    load_weights(t.compute, t.params, folder, std::move(used), replicated_of(t, true),
                 read_options(t), progress_of(t, "weights"));
    // Weights that are gathered in 8 bits are quantized with these scales.
    if (t.quantizer && state.contains(kFloat8Scales))
      t.quantizer->restore(t.compute, state.text(kFloat8Scales));
  };
  model::write_weights(t.params, t.data_parallel, t.quantizer, [&] { attempt(write); });
  return state;
}

}  // namespace

storage::TrainState load_model(const CheckpointParts& t, const fs::path& folder) {
  return load_model(t, folder, [](const auto& read) { read(); });
}

LoadedCheckpoint load_checkpoint(const CheckpointParts& t, const recipe::ModelSource& models,
                                 const std::string& recipe, const fs::path& folder,
                                 const std::optional<std::string>& other_data) {
  ReadFaults faults(t.control);
  std::optional<storage::CheckpointRef> whole;
  TrainProgress progress;
  faults.attempt([&] {
    whole = storage::complete_checkpoint(folder);
    if (!whole || !read_state(folder).contains(kStep))
      throw UserError(fmt::format("{} has weights, but no training to continue", folder.string()),
                      "leave checkpoint.load out, and set model.from to the Hugging Face folder "
                      "from which it was imported");
    refuse_different_run(models, recipe, folder, other_data);
    progress = read_progress(models, folder);
  });
  const storage::TrainState state =
      load_model(t, folder, [&](const auto& read) { faults.attempt(read); });
  faults.attempt([&] { load_moments(t, folder); });
  faults.agree(folder);
  return {progress, state};
}

}  // namespace mtrain::checkpoint
