#include "train/snapshot.h"

#include <algorithm>
#include <cstring>
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

// The part of a flat tensor that a checkpoint holds: a parameter's rows without padding, so that
// files fit every layout.
Tensor real_part(const Parameter& p, const Tensor& t) {
  Shape shape = p.shape;
  shape[0] = p.real_rows();
  return t.flat(0, shape);
}

void write_model(Trainer& t, const fs::path& path) {
  std::vector<TensorInfo> infos;
  for (Parameter* p : t.params().params())
    infos.push_back({p->name, DType::f32, real_part(*p, p->master).shape()});
  SafetensorsWriter writer(path, infos, {{"format", "mtrain"}});
  for (Parameter* p : t.params().params())
    writer.write(p->name, real_part(*p, p->master), t.compute());
  writer.commit();
}

void write_optimizer(Trainer& t, const fs::path& path) {
  std::vector<TensorInfo> infos;
  for (Parameter* p : t.params().params())
    for (const char* which : {".m", ".v"})
      infos.push_back({p->name + which, DType::f32, real_part(*p, p->master).shape()});
  SafetensorsWriter writer(path, infos, {{"format", "mtrain"}});
  for (Parameter* p : t.params().params()) {
    writer.write(p->name + ".m", real_part(*p, t.optimizer().m_of(*p)), t.compute());
    writer.write(p->name + ".v", real_part(*p, t.optimizer().v_of(*p)), t.compute());
  }
  writer.commit();
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
  static const std::set<std::string> single{
      "train.seed",    "train.global_batch_size", "dataset.seq_length",
      "dataset.train", "dataset.train_weights",   "dataset.seed"};
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

void upload(Stream& on, const Tensor& to, std::vector<float> values) {
  auto keep = std::make_shared<std::vector<float>>(std::move(values));
  const void* data = keep->data();
  on.upload(to, std::move(keep), data);
}

}  // namespace

fs::path save_snapshot(Trainer& t, const Recipe& recipe, const fs::path& root) {
  CheckpointWriter writer(root, t.steps_done(), int(recipe.checkpoint.keep));
  write_model(t, writer.folder() / kModel);
  write_optimizer(t, writer.folder() / kOptimizer);
  TrainState state;
  state.set("step", t.steps_done());
  state.set("matmul_choices", ops::matmul_choices());
  state.save(writer.folder() / kState);
  write_file_atomic(writer.folder() / kRecipe, print_recipe(recipe));
  return writer.commit();
}

Recipe load_saved_recipe(const fs::path& folder) {
  Problems problems;
  Recipe recipe = load_recipe((folder / kRecipe).string(), {}, problems);
  problems.throw_if_errors();
  return recipe;
}

void load_weights(Stream& on, ParamStore& params, const fs::path& folder) {
  const SafetensorsReader model(folder / kModel);
  std::set<std::string> used;
  for (Parameter* p : params.params()) used.insert(p->name);
  refuse_surplus(model, used);
  for (Parameter* p : params.params())
    params.set_master(on, *p, read_floats(model, p->name, real_part(*p, p->value).shape()));
}

void load_snapshot(Trainer& t, const Recipe& recipe, const fs::path& folder) {
  refuse_other_recipe(recipe, folder);
  const TrainState state = TrainState::load(folder / kState);
  load_weights(t.compute(), t.params(), folder);
  const SafetensorsReader moments(folder / kOptimizer);
  std::set<std::string> used;
  for (Parameter* p : t.params().params()) {
    used.insert(p->name + ".m");
    used.insert(p->name + ".v");
  }
  refuse_surplus(moments, used);
  for (Parameter* p : t.params().params()) {
    const Tensor m = real_part(*p, t.optimizer().m_of(*p)),
                 v = real_part(*p, t.optimizer().v_of(*p));
    upload(t.compute(), m, read_floats(moments, p->name + ".m", m.shape()));
    upload(t.compute(), v, read_floats(moments, p->name + ".v", v.shape()));
  }
  ops::restore_matmul_choices(state.text("matmul_choices"));
  t.set_steps_done(state.integer("step"));
}

}  // namespace mtrain
