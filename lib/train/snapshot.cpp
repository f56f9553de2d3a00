#include "train/snapshot.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <set>

#include "checkpoint/safetensors.h"
#include "checkpoint/state.h"
#include "ops/tuning.h"
#include "recipe/schema.h"

namespace mtrain {

namespace fs = std::filesystem;

namespace {

constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors",
                     *kState = "state.json", *kRecipe = "recipe.yaml";

constexpr const char* kOwnRecipe =
    "load it with the recipe it was saved under (recipe.yaml in the checkpoint's folder)";

// What a checkpoint holds of a parameter: its rows without padding, so that files fit every layout.
Shape real_shape(const Parameter& p) {
  Shape shape = p.shape;
  shape[0] = p.real_rows();
  return shape;
}

// One file of flat tensors of whole units, which all ranks gather one after the other and rank 0
// (with a `path`) writes by parameter, each name with a suffix.
struct StateTensor {
  const char* suffix;
  std::function<Tensor(ParamUnit&)> whole;
};
void write_state(Trainer& t, const std::optional<fs::path>& path,
                 const std::vector<StateTensor>& tensors) {
  std::optional<SafetensorsWriter> writer;
  if (path) {
    std::vector<TensorInfo> infos;
    for (const ParamUnit* unit : t.params().units())
      for (const StateTensor& tensor : tensors)
        for (const Parameter* p : unit->params)
          infos.push_back({p->name + tensor.suffix, DType::f32, real_shape(*p)});
    writer.emplace(*path, infos, Metadata{{"format", "mtrain"}});
  }
  for (ParamUnit* unit : t.params().units())
    for (const StateTensor& tensor : tensors) {
      const Tensor whole = tensor.whole(*unit);
      for (const Parameter* p : unit->params)
        if (writer)
          writer->write(p->name + tensor.suffix, whole.flat(p->begin, real_shape(*p)), t.compute());
    }
  if (writer) writer->commit();
}

std::vector<float> read_floats(const SafetensorsReader& file, const std::string& name,
                               const Shape& expected) {
  const TensorInfo& info = file.info(name);
  if (info.dtype != DType::f32 || !(info.shape == expected))
    throw UserError(fmt::format("{}: tensor {} is {} {}, and the recipe's model has fp32 {}",
                                file.path().string(), name, dtype_name(info.dtype),
                                info.shape.str(), expected.str()),
                    kOwnRecipe);
  std::vector<float> values(static_cast<size_t>(expected.count()));
  std::memcpy(values.data(), file.span(name).data, values.size() * 4);
  return values;
}

// A tensor that nobody asks for is of another model: without it the weights mean something else.
void refuse_surplus(const SafetensorsReader& file, const std::set<std::string>& used) {
  std::vector<std::string> surplus;
  for (const TensorInfo& t : file.tensors())
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

// Whether a resumed run must agree with the saved one in this field: what the network computes, and
// what gives the order of the data. The vocabulary is told by the tensors' shapes, and the
// initialisation has happened.
bool must_agree(const std::string& path) {
  static const std::set<std::string> single{"train.seed",
                                            "train.global_batch_size",
                                            "dataset.seq_length",
                                            "dataset.train",
                                            "dataset.train_weights",
                                            "dataset.seed",
                                            "packed_sequence.packed_sequence_size",
                                            "packed_sequence.drop_long_samples"};
  if (path == "model.vocab_size" || path == "model.init_method_std") return false;
  return path.starts_with("model.") || single.count(path);
}

void refuse_other_recipe(const Recipe& now, const fs::path& folder) {
  const Recipe saved = load_saved_recipe(folder);
  std::string differences;
  for (const SchemaRow& row : schema_rows())
    if (must_agree(row.path) && row.show(saved) != row.show(now))
      differences +=
          fmt::format("\n  {}: saved with {}, now {}", row.path, row.show(saved), row.show(now));
  if (differences.empty()) return;
  throw UserError(fmt::format("{} is of another run:{}", folder.string(), differences),
                  "a resumed run goes on with the same model and data: give these values as they "
                  "were saved, or start a new run with checkpoint.load unset");
}

// This rank's part of a parameter's moment.
void set_moment(Stream& on, const Parameter& p, const Tensor& own, std::vector<float> values) {
  const auto keep = std::make_shared<std::vector<float>>(std::move(values));
  const auto& owned = p.unit->owned;
  for (const OwnedPart& part : owned_parts(p)) {
    int64_t first = part.in_range;  // owned ranges follow each other in the moments
    for (const OwnedRange* r = owned.data(); r != part.range; ++r) first += r->count;
    on.upload(own.flat(first, {part.count}), keep, keep->data() + part.in_param);
  }
}

}  // namespace

fs::path save_snapshot(Trainer& t, const Recipe& recipe, const fs::path& root,
                       const std::function<void(std::string_view)>& on_commit) {
  std::optional<CheckpointWriter> writer;
  if (t.world().rank() == 0) writer.emplace(root, t.steps_done(), int(recipe.checkpoint.keep));
  const auto file = [&](const char* name) {
    return writer ? std::optional(writer->folder() / name) : std::nullopt;
  };
  DataParallel& dp = t.data_parallel();
  const auto moment = [&](Tensor AdamW::Moments::*which) {
    return [&t, &dp, which](ParamUnit& unit) {
      return dp.whole(unit, t.optimizer().moments(unit).*which);
    };
  };
  write_state(t, file(kModel), {{"", [&](ParamUnit& unit) { return whole_master(dp, unit); }}});
  write_state(t, file(kOptimizer),
              {{".m", moment(&AdamW::Moments::m)}, {".v", moment(&AdamW::Moments::v)}});
  if (!writer) return {};
  TrainState state;
  state.set("step", t.steps_done());
  state.set("matmul_choices", ops::matmul_choices());
  state.save(writer->folder() / kState);
  write_file_atomic(writer->folder() / kRecipe, print_recipe(recipe));
  writer->set_step_hook(on_commit);
  return writer->commit();
}

Recipe load_saved_recipe(const fs::path& folder) {
  Problems problems;
  // It was fit for the ranks that saved it, whatever their number.
  Recipe recipe = load_recipe((folder / kRecipe).string(), {}, problems, 0);
  problems.throw_if_errors();
  return recipe;
}

void load_weights(Stream& on, ParamStore& params, const fs::path& folder) {
  const SafetensorsReader model(folder / kModel);
  std::set<std::string> used;
  for (Parameter* p : params.params()) used.insert(p->name);
  refuse_surplus(model, used);
  for (Parameter* p : params.params())
    params.set_master(on, *p, read_floats(model, p->name, real_shape(*p)));
}

void load_snapshot(Trainer& t, const Recipe& recipe, const fs::path& folder) {
  refuse_other_recipe(recipe, folder);
  const TrainState state = TrainState::load(folder / kState);
  t.change_weights([&] { load_weights(t.compute(), t.params(), folder); });
  const SafetensorsReader moments(folder / kOptimizer);
  std::set<std::string> used;
  for (Parameter* p : t.params().params()) {
    used.insert(p->name + ".m");
    used.insert(p->name + ".v");
  }
  refuse_surplus(moments, used);
  for (Parameter* p : t.params().params()) {
    const AdamW::Moments& own = t.optimizer().moments(*p->unit);
    set_moment(t.compute(), *p, own.m, read_floats(moments, p->name + ".m", real_shape(*p)));
    set_moment(t.compute(), *p, own.v, read_floats(moments, p->name + ".v", real_shape(*p)));
  }
  ops::restore_matmul_choices(state.text("matmul_choices"));
  t.set_steps_done(state.integer("step"));
}

}  // namespace mtrain
