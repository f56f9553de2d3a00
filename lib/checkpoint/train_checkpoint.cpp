#include "checkpoint/train_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <set>
#include <sstream>

#include "base/file.h"
#include "checkpoint/read_faults.h"
#include "checkpoint/read_weights.h"
#include "model/param/param_uploader.h"
#include "model/param/write_weights.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "storage/checkpoint_dir.h"
#include "storage/file_sums.h"
#include "storage/finite_values.h"
#include "storage/free_space.h"
#include "storage/manifest.h"
#include "storage/recorded_recipe.h"
#include "storage/safetensors.h"

namespace mtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors",
                     *kState = "state.json";

// Entries of state.json.
constexpr const char *kStep = "step", *kFloat8Scales = "fp8_scales", *kUpdates = "updates",
                     *kLossScale = "loss_scale";

constexpr const char* kOwnRecipe =
    "load it with the recipe it was saved under (recipe.yaml in the checkpoint's folder is a copy)";
constexpr const char* kOwnCheckpoint = "load the checkpoint unchanged, as mtrain saved it";

// Assembles `count` elements of a layout-free tensor. `parts` holds the parts of all
// tensor-parallel ranks, one after the other. `runs` returns a rank's elements, which start at
// `begin` in its part.
Tensor assemble(Stream& stream, const model::Parameter& p, const Tensor& parts, int64_t begin,
                int64_t count,
                const std::function<std::vector<model::ElementRun>(int rank)>& runs) {
  const int64_t part = parts.count() / p.shard.ranks;
  if (p.shard.dim == model::ShardSpec::Dim::none) return parts.flat(begin, {count});
  const Tensor whole = Tensor::empty(stream, {1, count}, parts.dtype());
  std::vector<ops::CopyBlock> blocks;
  for (int rank = 0; rank < p.shard.ranks; ++rank)
    for (const model::ElementRun& r : runs(rank)) {
      if (r.replica > 0) continue;
      blocks.push_back({.from_row = 0,
                        .from_column = rank * part + begin + r.here,
                        .to_row = 0,
                        .to_column = r.full,
                        .rows = 1,
                        .columns = r.count});
    }
  ops::copy_blocks(stream, parts.view({1, parts.count()}), whole, std::move(blocks));
  return whole.view({count});
}

// Returns the first rank that has each parameter of the model; that rank saves it. All ranks must
// call it.
std::vector<int> find_savers(const CheckpointParts& t) {
  std::string own;
  for (const spec::TensorSpec& tensor : t.parameters) {
    const model::Parameter* here = t.params.find(tensor.name);
    own += here && !here->copy ? '1' : '0';
  }
  const auto all = t.control.texts(own);
  std::vector<int> savers;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto has = [&](const std::string& rank) { return rank[i] == '1'; };
    savers.push_back(int(std::ranges::find_if(all, has) - all.begin()));
    MT_CHECK(savers.back() < int(all.size()), "no rank has parameter {}", t.parameters[i].name);
  }
  return savers;
}

// Runs `work` on this rank, and converts errors of files.
void with_save_errors(const std::function<void()>& work) {
  try {
    work();
  } catch (const RunError& e) {
    throw SaveError(e.message(), e.hint());
  } catch (const UserError& e) {  // a file cannot be read back
    throw SaveError(e.message(), e.hint());
  } catch (const fs::filesystem_error& e) {
    throw SaveError(e.what());
  }
}

// Rank 0 runs `work` while the others wait. Disks may take longer than the timeout of
// communication. `work` therefore calls its argument from time to time: a heartbeat that the others
// receive. If a file cannot be written, all ranks throw the same SaveError. If `work` throws
// another error, the caller aborts the world, which ends the others' wait.
void on_rank_0(const comm::HostCollectives& control,
               const std::function<void(const std::function<void()>& heartbeat)>& work) {
  enum : int64_t { kFailed, kWorking, kDone, kWaiting };
  const auto report_failure = [&](const std::string& message) {
    return control.texts(message).front();
  };
  if (control.rank() == 0) {
    try {
      with_save_errors([&] { work([&] { control.least(kWorking); }); });
    } catch (const SaveError& e) {
      control.least(kFailed);
      report_failure(e.message());
      throw;
    }
    control.least(kDone);
    return;
  }
  int64_t news = kWorking;
  while (news == kWorking) news = control.least(kWaiting);
  if (news == kFailed) throw SaveError(report_failure(""));
}

// Does the same for `work` that cannot call a heartbeat. It runs on a separate thread, and must not
// use the device.
void on_rank_0_in_background(const comm::HostCollectives& control,
                             const std::function<void()>& work) {
  if (control.size() == 1) return with_save_errors(work);
  on_rank_0(control, [&](const auto& heartbeat) {
    std::future<void> end = std::async(std::launch::async, work);
    while (end.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) heartbeat();
    end.get();
  });
}

std::vector<ReplicatedTensor> replicated_of(const CheckpointParts& t, bool of_model) {
  std::vector<ReplicatedTensor> found;
  for (const ReplicatedTensor& r : t.replicated)
    if (r.of_model == of_model) found.push_back(r);
  return found;
}

// A kind of tensor that is saved for each parameter that has one: the weights, or a moment.
struct SavedTensor {
  std::string suffix;  // follows the parameter's name in the file
  DType dtype;
  std::function<bool(const model::ParamSpec&)> has;
  // Returns the tensor of a unit: this rank's part, or the full unit if this rank has it.
  std::function<Tensor(model::ParamUnit&)> own;
};

// How much of a checkpoint has been written. Only rank 0 counts and reports it.
struct WrittenBytes {
  int64_t done = 0, total = 0;
};

int64_t bytes_of(const std::vector<SavedTensor>& tensors, const CheckpointParts& t) {
  int64_t bytes = 0;
  for (const spec::TensorSpec& p : t.parameters)
    for (const SavedTensor& tensor : tensors)
      if (tensor.has(model::part_of(p))) bytes += p.full_shape.count() * dtype_size(tensor.dtype);
  return bytes;
}

// Writes one file: the replicated tensors, and those of all parameters.
class StateWriter {
 public:
  // Only rank 0 has a `path`.
  StateWriter(const CheckpointParts& parts, const std::optional<fs::path>& path,
              const std::vector<SavedTensor>& tensors,
              const std::vector<ReplicatedTensor>& replicated, WrittenBytes& written)
      : t_(parts), tensors_(tensors), savers_(find_savers(parts)), written_(written) {
    on_rank_0(t_.control, [&](const auto&) { open(*path, replicated); });
  }

  // Writes the file. All ranks call it.
  void write() {
    for (size_t i = 0; i < t_.parameters.size(); ++i) {
      const spec::TensorSpec& p = t_.parameters[i];
      p.split.experts ? write_experts(p, savers_[i]) : write_full(p, savers_[i]);
    }
    on_rank_0_in_background(t_.control, [&] { file_->commit(); });
  }

 private:
  void open(const fs::path& path, const std::vector<ReplicatedTensor>& replicated) {
    // Wider types must come first in the file, and the replicated tensors are fp32.
    std::vector<storage::TensorInfo> infos;
    for (const ReplicatedTensor& r : replicated)
      infos.push_back({r.name, DType::f32, r.value.shape()});
    for (const spec::TensorSpec& p : t_.parameters)
      for (const SavedTensor& tensor : tensors_)
        if (tensor.has(model::part_of(p)))
          infos.push_back({p.name + tensor.suffix, tensor.dtype, p.full_shape});
    file_.emplace(path, infos, storage::Metadata{{"format", "mtrain"}},
                  storage::SafetensorsWriter::Sums::beside);
    for (const ReplicatedTensor& r : replicated) file_->write(r.name, r.value, t_.compute);
  }

  // The ranks of a stage gather the tensors unit by unit.
  void write_full(const spec::TensorSpec& p, int saver) {
    const model::Parameter* own = t_.params.find(p.name);
    if (own && !own->copy && own->unit != gathered_) {
      gathered_ = own->unit;
      ranks_.clear();
      for (const SavedTensor& tensor : tensors_) {
        if (std::ranges::none_of(own->unit->params,
                                 [&](const auto* q) { return tensor.has(*q); })) {
          ranks_.emplace_back();
          continue;
        }
        const Tensor part = tensor.own(*own->unit);
        ranks_.push_back(t_.tensor_parallel.all_ranks(
            part.count() == own->unit->count ? part
                                             : t_.data_parallel.gather_unit(*own->unit, part)));
      }
    }
    for (size_t k = 0; k < tensors_.size(); ++k) {
      if (!tensors_[k].has(model::part_of(p))) continue;
      const Tensor whole =
          t_.control.rank() == saver
              ? assemble(t_.compute, *own, ranks_[k], own->begin, p.full_shape.count(),
                         [&](int rank) { return own->runs(rank); })
                    .view(p.full_shape)
              : Tensor();
      write(p.name, tensors_[k], whole, p.full_shape, saver);
    }
  }

  // The ranks of a stage send one expert after the other to the first of them, since a rank may not
  // have the memory for all experts of a layer. If tensor parallelism divides the expert, each part
  // is sent to the first of the ranks that have this part, and these ranks gather the parts.
  void write_experts(const spec::TensorSpec& p, int saver) {
    gathered_ = nullptr;
    ranks_.clear();
    const model::Parameter* own = t_.params.find(p.name);
    const int64_t experts = p.full_shape[0], each = p.full_shape.count() / experts;
    for (const SavedTensor& tensor : tensors_)
      for (int64_t e = 0; tensor.has(model::part_of(p)) && e < experts; ++e) {
        Tensor expert;
        if (own) {
          const int64_t here = own->shape[0], part = own->shape.count() / here;
          expert =
              t_.data_parallel.bring_to_first(*own->unit, tensor.own(*own->unit), int(e / here),
                                              own->begin + e % here * part, part);
          if (expert && part < each) expert = t_.tensor_parallel.all_ranks(expert);
        }
        expert = t_.control.rank() == saver
                     ? assemble(t_.compute, *own, expert, 0, each,
                                [&](int rank) { return own->matrix_runs(rank); })
                     : Tensor();
        write(p.name, tensor, expert, {each}, saver);
      }
  }

  // Sends a tensor, or the next part of one, from its saver to rank 0, which writes it. All ranks
  // wait until it is written; otherwise gathered tensors would pile up in memory.
  void write(const std::string& name, const SavedTensor& tensor, Tensor part, const Shape& shape,
             int saver) {
    const int rank = t_.control.rank();
    if (part) part = ops::in_dtype(t_.compute, part, tensor.dtype, device::MemoryCategory::buffers);
    if (saver != 0 && (rank == saver || rank == 0))
      part = t_.pipeline.transfer(part, shape, tensor.dtype, saver, 0);
    on_rank_0(t_.control, [&](const auto& heartbeat) {
      file_->write_part(name + tensor.suffix, part, t_.compute, heartbeat);
      written_.done += part.count() * dtype_size(tensor.dtype);
      if (t_.progress) t_.progress("checkpoint", written_.done, written_.total);
    });
  }

  const CheckpointParts& t_;
  const std::vector<SavedTensor>& tensors_;
  const std::vector<int> savers_;
  WrittenBytes& written_;
  std::optional<storage::SafetensorsWriter> file_;
  const model::ParamUnit* gathered_ = nullptr;  // the unit that ranks_ holds
  // Gathered over tp, one for each of tensors_; absent if the unit has no such tensor.
  std::vector<Tensor> ranks_;
};

// Refuses tensors that are not `used`, or whose type is not one of `types`. An unused tensor in the
// model's file shows that it belongs to a different model, whose other weights have a different
// meaning, too. In the optimizer's file it shows that a different optimizer saved it.
void refuse_unknown_tensors(const storage::SafetensorsReader& file,
                            const std::set<std::string>& used, const std::set<DType>& types,
                            const char* reader) {
  std::vector<std::string> surplus;
  for (const storage::StoredTensor& t : file.tensors()) {
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
// names all parameters of its model.
void load_weights(Stream& stream, model::ParamStore& params, const fs::path& folder,
                  std::set<std::string> used, const std::vector<ReplicatedTensor>& replicated,
                  const ReadProgress& progress = {}) {
  const storage::SafetensorsReader file(folder / kModel);
  const storage::FiniteValues model(file, storage::FiniteValues::Of::checkpoint);
  for (const ReplicatedTensor& r : replicated) used.insert(r.name);
  refuse_unknown_tensors(file, used, {DType::f32}, "model");
  read_weights(stream, params, model, kOwnRecipe, progress);
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
  const storage::SafetensorsReader file(folder / kOptimizer);
  const storage::FiniteValues moments(file, storage::FiniteValues::Of::checkpoint);
  std::set<std::string> used;
  const std::vector<optim::StateTensor> state = t.optimizer.state();
  for (const spec::TensorSpec& p : t.parameters)
    for (const optim::StateTensor& tensor : state)
      if (tensor.values.has(model::part_of(p))) used.insert(p.name + tensor.suffix);
  const std::vector<ReplicatedTensor> replicated = replicated_of(t, false);
  for (const ReplicatedTensor& r : replicated) used.insert(r.name);
  refuse_unknown_tensors(file, used, {DType::f32, DType::bf16}, "model and optimizer");
  read_replicated(t.compute, replicated, moments, kOwnRecipe);
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

// Returns the delayed scales of all layers, each line once. Ranks that share a layer or its experts
// have the same scales, so only some of them report. All ranks must call it.
std::string float8_state(const CheckpointParts& t) {
  using model::UnitKind;
  const bool layers = t.data_parallel.first_copy(UnitKind::layer) && t.tensor_parallel.rank() == 0;
  const bool experts = t.data_parallel.first_copy(UnitKind::experts);
  std::set<std::string> lines;
  const std::string own = t.quantizer ? t.quantizer->state(t.compute, layers, experts) : "";
  for (const std::string& rank : t.control.texts(own)) {
    std::istringstream text(rank);
    for (std::string line; std::getline(text, line);) lines.insert(line + "\n");
  }
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

}  // namespace

plan::SavedRecipe saved_recipe(const fs::path& folder) {
  storage::RecordedRecipe recorded = storage::recorded_recipe(folder);
  return {.file = std::move(recorded.file), .text = std::move(recorded.text)};
}

fs::path save_checkpoint(const CheckpointParts& t, const TrainProgress& progress,
                         SaveOptions options) {
  std::optional<storage::CheckpointWriter> writer;
  const auto file = [&](const char* name) {
    return writer ? std::optional(writer->folder() / name) : std::nullopt;
  };
  const auto weights = [&](model::ParamUnit& unit) { return own_master(t.data_parallel, unit); };
  const auto all = [](const model::ParamSpec&) { return true; };
  // Files hold fp32 weights, even if training keeps only bf16 weights.
  const std::vector<SavedTensor> model{{"", DType::f32, all, weights}};
  std::vector<SavedTensor> optimizer;
  for (const optim::StateTensor& tensor : t.optimizer.state()) {
    const optim::OwnedState* values = &tensor.values;
    optimizer.push_back(
        {tensor.suffix, values->dtype(),
         [values](const model::ParamSpec& p) { return values->has(p); },
         [&t, values](model::ParamUnit& unit) { return values->own(t.compute, unit); }});
  }
  WrittenBytes written{.total = bytes_of(model, t) + bytes_of(optimizer, t)};
  on_rank_0(t.control, [&](const auto&) {
    writer.emplace(options.root, progress.steps_done, options.keep, options.job);
    storage::require_space(writer->folder(), written.total);
  });
  StateWriter(t, file(kModel), model, replicated_of(t, true), written).write();
  StateWriter(t, file(kOptimizer), optimizer, replicated_of(t, false), written).write();
  const std::string float8 = float8_state(t);
  fs::path committed;
  on_rank_0_in_background(t.control, [&] {
    storage::TrainState& state = options.state;
    state.set(kStep, progress.steps_done);
    if (progress.updates != progress.steps_done) state.set(kUpdates, progress.updates);
    if (!progress.loss_scale.empty()) state.set(kLossScale, progress.loss_scale);
    state.set("ranks", t.control.size());
    if (!float8.empty()) state.set(kFloat8Scales, float8);
    state.set(storage::kRecipeEntry, options.recipe);
    state.save(writer->folder() / kState);
    write_file_atomic(writer->folder() / storage::kRecipeCopy, options.recipe);
    writer->set_step_hook(options.on_commit);
    committed = writer->commit();
  });
  return committed;
}

void load_weights(Stream& stream, model::ParamStore& params,
                  const std::vector<ReplicatedTensor>& replicated, const fs::path& folder,
                  const ReadProgress& progress) {
  std::set<std::string> used;
  for (const model::Parameter* p : params.params()) used.insert(p->name);
  load_weights(stream, params, folder, std::move(used), replicated, progress);
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
                 progress_of(t, "weights"));
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
  faults.attempt([&] {
    whole = storage::complete_checkpoint(folder);
    if (!whole || !read_state(folder).contains(kStep))
      throw UserError(fmt::format("{} has weights, but no training to continue", folder.string()),
                      "leave checkpoint.load out, and set model.from to the Hugging Face folder "
                      "from which it was imported");
    refuse_different_run(models, recipe, folder, other_data);
  });
  const storage::TrainState state =
      load_model(t, folder, [&](const auto& read) { faults.attempt(read); });
  faults.attempt([&] { load_moments(t, folder); });
  faults.agree(folder);
  // Without the entry `updates`, every step made an update.
  const int64_t steps = whole->step;  // state.json has the same number
  const int64_t updates = state.contains(kUpdates) ? state.integer(kUpdates) : steps;
  if (updates < 0 || updates > steps)
    throw storage::damaged_file(folder / kState,
                                fmt::format("{} updates in {} steps", updates, steps));
  return {{.steps_done = steps,
           .updates = updates,
           .loss_scale = state.contains(kLossScale) ? state.text(kLossScale) : std::string()},
          state};
}

}  // namespace mtrain::checkpoint
