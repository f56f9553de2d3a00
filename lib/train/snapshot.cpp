#include "train/snapshot.h"

#include <cstring>

#include "checkpoint/safetensors.h"
#include "checkpoint/state.h"
#include "ops/tuning.h"

namespace mtrain {

namespace fs = std::filesystem;

namespace {

constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors",
                     *kState = "state.json";

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
                    "load it with the recipe it was saved under (recipe.yaml in its run folder)");
  std::vector<float> values(static_cast<size_t>(expected.count()));
  std::memcpy(values.data(), file.span(name).data, values.size() * 4);
  return values;
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
  state.set("seed", recipe.train.seed);
  state.set("global_batch_size", recipe.train.global_batch_size);
  state.set("seq_length", recipe.dataset.seq_length);
  state.set("matmul_choices", ops::matmul_choices());
  state.save(writer.folder() / kState);
  write_file_atomic(writer.folder() / "recipe.yaml", print_recipe(recipe));
  return writer.commit();
}

void load_weights(Stream& on, ParamStore& params, const fs::path& folder) {
  const SafetensorsReader model(folder / kModel);
  for (Parameter* p : params.params())
    params.set_master(on, *p, read_floats(model, p->name, real_part(*p, p->value).shape()));
}

void load_snapshot(Trainer& t, const Recipe& recipe, const fs::path& folder) {
  const TrainState state = TrainState::load(folder / kState);
  const auto same = [&](const char* key, int64_t now, const char* field) {
    if (state.integer(key) == now) return;
    throw UserError(fmt::format("{} was saved with {} = {}, the recipe says {}", folder.string(),
                                field, state.integer(key), now),
                    "a resumed run continues the same data order: keep the value, or start a new "
                    "run with checkpoint.load unset");
  };
  same("seed", recipe.train.seed, "train.seed");
  same("global_batch_size", recipe.train.global_batch_size, "train.global_batch_size");
  same("seq_length", recipe.dataset.seq_length, "dataset.seq_length");
  load_weights(t.compute(), t.params(), folder);
  const SafetensorsReader moments(folder / kOptimizer);
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
