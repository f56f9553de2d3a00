#include "checkpoint/train_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <set>
#include <sstream>

#include "base/file.h"
#include "ops/ops.h"
#include "optim/write_weights.h"
#include "plan/saved_recipe.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"

namespace mtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors",
                     *kState = "state.json", *kRecipe = "recipe.yaml";

// Entries of state.json.
constexpr const char *kFloat8Scales = "fp8_scales", *kUpdates = "updates",
                     *kLossScale = "loss_scale";

constexpr const char* kOwnRecipe =
    "load it with the recipe it was saved under (recipe.yaml in the checkpoint's folder)";

// Returns the layout-free tensor of a parameter. `units` holds its whole unit from all ranks of
// tensor parallelism, one after the other.
Tensor assemble(Stream& stream, const model::Parameter& p, const Tensor& units) {
  const int64_t unit = units.count() / p.shard.ranks;
  if (p.shard.dim == model::ShardSpec::Dim::none) return units.flat(p.begin, p.whole_shape());
  const Tensor whole = Tensor::empty(stream, {1, p.whole_shape().count()}, units.dtype());
  std::vector<ops::CopyBlock> blocks;
  for (int rank = 0; rank < p.shard.ranks; ++rank)
    for (const model::ElementRun& r : p.runs(rank)) {
      if (r.replica > 0) continue;
      blocks.push_back({.from_row = 0,
                        .from_column = rank * unit + p.begin + r.here,
                        .to_row = 0,
                        .to_column = r.whole,
                        .rows = 1,
                        .columns = r.count});
    }
  ops::copy_blocks(stream, units.view({1, units.count()}), whole, std::move(blocks));
  return whole.view(p.whole_shape());
}

// Files hold fp32, even if the weights are trained in bf16 alone.
Tensor as_fp32(Stream& stream, const Tensor& x) {
  return ops::in_dtype(stream, x, DType::f32, device::MemoryCategory::buffers);
}

// Returns, for each parameter of the whole model, the first rank that has it; that rank saves it.
// All ranks call it.
std::vector<int> find_savers(const CheckpointParts& t) {
  const auto params = t.whole_model->params();
  std::string own;
  for (const model::Parameter* p : params) {
    const model::Parameter* here = t.params.find(p->name);
    own += here && !here->copy ? '1' : '0';
  }
  const auto all = t.control.texts(own);
  std::vector<int> savers;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto has = [&](const std::string& rank) { return rank[i] == '1'; };
    savers.push_back(int(std::ranges::find_if(all, has) - all.begin()));
    MT_CHECK(savers.back() < int(all.size()), "no rank has parameter {}", params[i]->name);
  }
  return savers;
}

// Rank 0 does `work` while the others wait. Disks may take longer than the time limit of
// communication, so `work` calls its argument, a heartbeat that the others receive, from time to
// time. If `work` throws, the caller aborts the world, which ends the others' wait.
void on_rank_0(const comm::HostCollectives& control,
               const std::function<void(const std::function<void()>& heartbeat)>& work) {
  if (control.rank() == 0) {
    work([&] { control.any(false); });
    control.any(true);
  } else {
    while (!control.any(false)) {
    }
  }
}
// Does the same for `work` that cannot call a heartbeat. It runs on a thread of its own, and must
// not use the device.
void on_rank_0_in_background(const comm::HostCollectives& control,
                             const std::function<void()>& work) {
  if (control.size() == 1) return work();
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

// A tensor that is saved for each parameter. A new kind of optimizer state is a row of these.
struct StateTensor {
  const char* suffix;  // follows the parameter's name in the file
  DType dtype;
  std::function<Tensor(model::ParamUnit&)> whole;  // gathers the tensor of a whole unit
};
// Writes one file: the tensors of all parameters, then the replicated ones that are `of_model` or
// not. The ranks of a stage gather the tensors of one unit after the other. The first of these
// ranks sends each parameter to rank 0, which alone has a `path`, and writes it. All ranks wait
// until it is written, so that gathered tensors do not pile up in memory.
void write_state(const CheckpointParts& t, const std::vector<int>& savers,
                 const std::optional<fs::path>& path, const std::vector<StateTensor>& tensors,
                 bool of_model) {
  const auto params = t.whole_model->params();
  // Wider types must come first in the file, and the replicated tensors are fp32.
  const std::vector<ReplicatedTensor> replicated = replicated_of(t, of_model);
  std::optional<storage::SafetensorsWriter> writer;
  if (path) {
    std::vector<storage::TensorInfo> infos;
    for (const ReplicatedTensor& r : replicated)
      infos.push_back({r.name, DType::f32, r.value.shape()});
    for (const model::Parameter* p : params)
      for (const StateTensor& tensor : tensors)
        infos.push_back({p->name + tensor.suffix, tensor.dtype, p->whole_shape()});
    writer.emplace(*path, infos, storage::Metadata{{"format", "mtrain"}});
    for (const ReplicatedTensor& r : replicated) writer->write(r.name, r.value, t.compute);
  }
  const int rank = t.control.rank();
  const model::ParamUnit* gathered = nullptr;  // the unit that `ranks` holds
  std::vector<Tensor> ranks;                   // the tensors of all tp ranks, by state tensor
  for (size_t i = 0; i < params.size(); ++i) {
    const int saver = savers[i];
    const model::Parameter* own = t.params.find(params[i]->name);
    if (own && !own->copy && own->unit != gathered) {
      gathered = own->unit;
      ranks.clear();
      for (const StateTensor& tensor : tensors)
        ranks.push_back(t.tensor_parallel.all_ranks(tensor.whole(*own->unit)));
    }
    for (size_t k = 0; k < tensors.size(); ++k) {
      Tensor whole;
      if (rank == saver) whole = assemble(t.compute, *own, ranks[k]);
      if (saver != 0 && (rank == saver || rank == 0))
        whole = t.pipeline.transfer(whole, params[i]->whole_shape(), tensors[k].dtype, saver, 0);
      on_rank_0(t.control, [&](const auto& heartbeat) {
        writer->write(params[i]->name + tensors[k].suffix, whole, t.compute, heartbeat);
      });
    }
  }
  on_rank_0_in_background(t.control, [&] { writer->commit(); });
}

std::vector<float> read_floats(const storage::SafetensorsReader& file, const std::string& name,
                               const Shape& expected, bool or_bf16 = false) {
  const storage::TensorInfo& info = file.info(name);
  const bool bf16s = or_bf16 && info.dtype == DType::bf16;
  if ((info.dtype != DType::f32 && !bf16s) || !(info.shape == expected))
    throw UserError(
        fmt::format("{}: tensor {} is {} {}, but the recipe's model has {} {}",
                    file.path().string(), name, dtype_name(info.dtype), info.shape.str(),
                    or_bf16 ? "fp32 or bf16" : "fp32", expected.str()),
        kOwnRecipe);
  const auto read = [&]<class T>(std::vector<T> values) {
    std::memcpy(values.data(), file.span(name).data, values.size() * sizeof(T));
    return values;
  };
  const auto count = static_cast<size_t>(expected.count());
  if (!bf16s) return read(std::vector<float>(count));
  const auto values = read(std::vector<bf16>(count));
  return {values.begin(), values.end()};
}

// A tensor that the model does not use shows that the file belongs to another model, whose other
// weights have another meaning, too.
void refuse_surplus(const storage::SafetensorsReader& file, const std::set<std::string>& used) {
  std::vector<std::string> surplus;
  for (const storage::TensorInfo& t : file.tensors())
    if (!used.count(t.name)) surplus.push_back(t.name);
  if (surplus.empty()) return;
  constexpr size_t kShown = 3;
  std::string names;
  for (size_t i = 0; i < std::min(kShown, surplus.size()); ++i)
    names += (i ? ", " : "") + surplus[i];
  throw UserError(
      fmt::format("{} has {} tensors that the recipe's model lacks: {}{}", file.path().string(),
                  surplus.size(), names, surplus.size() > kShown ? ", ..." : ""),
      kOwnRecipe);
}

void refuse_other_run(const std::string& recipe, const fs::path& folder) {
  const std::string differences = plan::resume_differences(recipe_file(folder), recipe);
  if (differences.empty()) return;
  throw UserError(fmt::format("{} is of another run:{}", folder.string(), differences),
                  "a resumed run goes on with the same model and data: give these values as they "
                  "were saved, or start a new run with checkpoint.load unset");
}

// Reads tensors that every rank has.
void load_replicated(Stream& stream, const std::vector<ReplicatedTensor>& replicated,
                     const storage::SafetensorsReader& file) {
  for (const ReplicatedTensor& r : replicated) {
    const auto values =
        std::make_shared<std::vector<float>>(read_floats(file, r.name, r.value.shape()));
    stream.upload(r.value, values, values->data());
  }
}

// Reads the weights of `params`, and the replicated tensors of the model, from a checkpoint whose
// model is `whole`.
void load_weights(Stream& stream, model::ParamStore& params, const fs::path& folder,
                  model::ParamStore& whole, const std::vector<ReplicatedTensor>& replicated) {
  const storage::SafetensorsReader model(folder / kModel);
  std::set<std::string> used;
  for (model::Parameter* p : whole.params()) used.insert(p->name);
  for (const ReplicatedTensor& r : replicated) used.insert(r.name);
  refuse_surplus(model, used);
  for (model::Parameter* p : params.params())
    params.set_master(stream, *p, read_floats(model, p->name, p->whole_shape()));
  load_replicated(stream, replicated, model);
}

void load_moments(const CheckpointParts& t, const fs::path& folder) {
  const storage::SafetensorsReader moments(folder / kOptimizer);
  std::set<std::string> used;
  for (model::Parameter* p : t.whole_model->params()) {
    used.insert(p->name + ".m");
    used.insert(p->name + ".v");
  }
  const std::vector<ReplicatedTensor> replicated = replicated_of(t, false);
  for (const ReplicatedTensor& r : replicated) used.insert(r.name);
  refuse_surplus(moments, used);
  load_replicated(t.compute, replicated, moments);
  for (model::Parameter* p : t.params.params()) {
    const auto read = [&](const char* suffix) {
      return read_floats(moments, p->name + suffix, p->whole_shape(), true);
    };
    t.optimizer.set_moment(t.compute, *p, &optim::AdamW::Moments::m, read(".m"));
    t.optimizer.set_moment(t.compute, *p, &optim::AdamW::Moments::v, read(".v"));
  }
}

// Returns the delayed scales of all layers, each line once. Ranks that share a layer have the same
// scales, so only some of them report. All ranks call it.
std::string float8_state(const CheckpointParts& t) {
  const bool reports = t.fp8 && t.data_parallel.rank() == 0 && t.tensor_parallel.rank() == 0;
  std::set<std::string> lines;
  for (const std::string& rank : t.control.texts(reports ? t.fp8->state(t.compute) : "")) {
    std::istringstream text(rank);
    for (std::string line; std::getline(text, line);) lines.insert(line + "\n");
  }
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

}  // namespace

fs::path recipe_file(const fs::path& folder) { return folder / kRecipe; }

fs::path save_checkpoint(const CheckpointParts& t, const TrainProgress& progress,
                         SaveOptions options) {
  std::optional<storage::CheckpointWriter> writer;
  if (t.control.rank() == 0) writer.emplace(options.root, progress.steps_done, int(options.keep));
  const auto file = [&](const char* name) {
    return writer ? std::optional(writer->folder() / name) : std::nullopt;
  };
  const auto weights = [&](model::ParamUnit& unit) {
    return as_fp32(t.compute, whole_master(t.data_parallel, unit));
  };
  const auto moment = [&](Tensor optim::AdamW::Moments::*which) {
    return [&t, which](model::ParamUnit& unit) {
      return t.data_parallel.whole(unit, t.optimizer.moments(unit).*which);
    };
  };
  const std::vector<int> savers = find_savers(t);
  write_state(t, savers, file(kModel), {{"", DType::f32, weights}}, true);
  const DType moments = t.optimizer.moments_type();
  write_state(t, savers, file(kOptimizer),
              {{".m", moments, moment(&optim::AdamW::Moments::m)},
               {".v", moments, moment(&optim::AdamW::Moments::v)}},
              false);
  const std::string float8 = float8_state(t);
  fs::path committed;
  on_rank_0_in_background(t.control, [&] {
    storage::TrainState& state = options.state;
    state.set("step", progress.steps_done);
    if (progress.updates != progress.steps_done) state.set(kUpdates, progress.updates);
    if (!progress.loss_scale.empty()) state.set(kLossScale, progress.loss_scale);
    state.set("ranks", t.control.size());
    if (!float8.empty()) state.set(kFloat8Scales, float8);
    state.save(writer->folder() / kState);
    write_file_atomic(recipe_file(writer->folder()), options.recipe);
    writer->set_step_hook(options.on_commit);
    committed = writer->commit();
  });
  return committed;
}

void load_weights(Stream& stream, model::ParamStore& params,
                  const std::vector<ReplicatedTensor>& replicated, const fs::path& folder) {
  load_weights(stream, params, folder, params, replicated);
}

LoadedCheckpoint load_checkpoint(const CheckpointParts& t, const std::string& recipe,
                                 const fs::path& folder) {
  refuse_other_run(recipe, folder);
  const storage::TrainState state = storage::TrainState::load(folder / kState);
  optim::write_weights(t.params, t.data_parallel, t.fp8, [&] {
    load_weights(t.compute, t.params, folder, *t.whole_model, replicated_of(t, true));
  });
  load_moments(t, folder);
  if (t.fp8 && state.contains(kFloat8Scales)) t.fp8->restore(t.compute, state.text(kFloat8Scales));
  // Without an entry every step made an update.
  const int64_t steps = state.integer("step");
  return {{.steps_done = steps,
           .updates = state.contains(kUpdates) ? state.integer(kUpdates) : steps,
           .loss_scale = state.contains(kLossScale) ? state.text(kLossScale) : std::string()},
          state};
}

}  // namespace mtrain::checkpoint
