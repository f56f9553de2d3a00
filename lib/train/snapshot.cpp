#include "train/snapshot.h"
#include "plan/load_recipe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <sstream>

#include "storage/safetensors.h"
#include "storage/state.h"
#include "recipe/schema.h"
#include "train/bf16_choice.h"

namespace mtrain {

namespace fs = std::filesystem;

namespace {

constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors",
                     *kState = "state.json", *kRecipe = "recipe.yaml";

constexpr const char* kFloat8Scales = "fp8_scales";  // of state.json

constexpr const char* kOwnRecipe =
    "load it with the recipe it was saved under (recipe.yaml in the checkpoint's folder)";

// The layout-free tensor, so that files fit every layout. `units`: whole ones of every rank of
// tensor parallelism, one after the other.
Tensor assemble(Stream& on, const Parameter& p, const Tensor& units) {
  const int64_t unit = units.count() / p.cut.ranks;
  if (p.cut.dim == Cut::Dim::none) return units.flat(p.begin, p.whole_shape());
  const Tensor whole = Tensor::empty(on, {1, p.whole_shape().count()}, units.dtype());
  std::vector<ops::CopyBlock> blocks;
  for (int rank = 0; rank < p.cut.ranks; ++rank)
    for (const ElementRun& r : p.runs(rank)) {
      if (r.copy > 0) continue;
      blocks.push_back({.from_row = 0,
                        .from_column = rank * unit + p.begin + r.here,
                        .to_row = 0,
                        .to_column = r.whole,
                        .rows = 1,
                        .columns = r.count});
    }
  ops::copy_blocks(on, units.view({1, units.count()}), whole, std::move(blocks));
  return whole.view(p.whole_shape());
}

// Files hold fp32, also of weights that are trained in bf16 alone.
Tensor as_fp32(Stream& on, const Tensor& x) {
  if (x.dtype() == DType::f32) return x;
  const Tensor wide = Tensor::empty(on, {x.count()}, DType::f32, MemoryCategory::buffers);
  ops::cast(on, x, wide);
  return wide;
}

// The parameters of the whole model, and for each the first rank that saves it.
struct WholeModel {
  explicit WholeModel(Trainer& t) : params(t.declare_whole()) {
    std::string own;
    for (const Parameter* p : params->params()) {
      const Parameter* here = t.params().find(p->name);
      own += here && !here->copy ? '1' : '0';
    }
    const auto all = t.control().texts(own);
    for (size_t i = 0; i < own.size(); ++i) {
      const auto has = [&](const std::string& rank) { return rank[i] == '1'; };
      saver.push_back(int(std::ranges::find_if(all, has) - all.begin()));
      MT_CHECK(saver.back() < int(all.size()), "no rank has {}", params->params()[i]->name);
    }
  }
  std::unique_ptr<ParamStore> params;
  std::vector<int> saver;
};

// Disks may take longer than ranks wait for each other: the others hear from rank 0 meanwhile.
// `work` is rank 0's, and calls what it is given from time to time. Where it throws, the others
// hear of it when the caller aborts the world.
void rank_0_in_touch(const Control& control,
                     const std::function<void(const std::function<void()>&)>& work) {
  if (control.rank() == 0) {
    work([&] { control.any(false); });
    control.any(true);
  } else {
    while (!control.any(false)) {
    }
  }
}
// The same for work on files alone, which cannot call.
void rank_0_while_others_wait(const Control& control, const std::function<void()>& work) {
  if (control.size() == 1) return work();
  rank_0_in_touch(control, [&](const auto& call) {
    std::future<void> end = std::async(std::launch::async, work);
    while (end.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) call();
    end.get();
  });
}

// One file of flat tensors of whole units, which the ranks of a stage gather one after the other;
// the first of them hands each parameter to rank 0, which (with a `path`) writes it, its name with
// a suffix. No rank goes on to the next parameter before: what it has gathered would pile up.
struct StateTensor {
  const char* suffix;
  std::function<Tensor(ParamUnit&)> whole;
};
void write_state(Trainer& t, const WholeModel& model, const std::optional<fs::path>& path,
                 const std::vector<StateTensor>& tensors) {
  const auto params = model.params->params();
  std::optional<SafetensorsWriter> writer;
  if (path) {
    std::vector<TensorInfo> infos;
    for (const Parameter* p : params)
      for (const StateTensor& tensor : tensors)
        infos.push_back({p->name + tensor.suffix, DType::f32, p->whole_shape()});
    writer.emplace(*path, infos, Metadata{{"format", "mtrain"}});
  }
  const int rank = t.world().rank();
  const ParamUnit* gathered = nullptr;  // of this rank's
  std::vector<Tensor> ranks;            // by state tensor
  for (size_t i = 0; i < params.size(); ++i) {
    const int saver = model.saver[i];
    const Parameter* own = t.params().find(params[i]->name);
    if (own && !own->copy && own->unit != gathered) {
      gathered = own->unit;
      ranks.clear();
      for (const StateTensor& tensor : tensors)
        ranks.push_back(t.tensor_parallel().all_ranks(tensor.whole(*own->unit)));
    }
    for (size_t k = 0; k < tensors.size(); ++k) {
      Tensor whole;
      if (rank == saver) whole = assemble(t.compute(), *own, ranks[k]);
      if (saver != 0 && (rank == saver || rank == 0))
        whole = t.pipeline().hand_on(whole, params[i]->whole_shape(), saver, 0);
      rank_0_in_touch(t.control(), [&](const auto& call) {
        writer->write(params[i]->name + tensors[k].suffix, whole, t.compute(), call);
      });
    }
  }
  rank_0_while_others_wait(t.control(), [&] { writer->commit(); });
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
void set_moment(Stream& on, const Parameter& p, const Tensor& own,
                const std::vector<float>& values) {
  const auto keep = std::make_shared<std::vector<float>>(p.take_real(values));
  const auto& owned = p.unit->owned;
  for (const OwnedPart& part : owned_parts(p)) {
    int64_t first = part.in_range;  // owned ranges follow each other in the moments
    for (const OwnedRange* r = owned.data(); r != part.range; ++r) first += r->count;
    on.upload(own.flat(first, {part.count}), keep, keep->data() + part.in_param);
  }
}

// Delayed scales are the same on the ranks that share a layer; the lines of all layers, once.
std::string float8_state(Trainer& t) {
  const bool speaks = t.fp8() && t.data_parallel().rank() == 0 && t.tensor_parallel().rank() == 0;
  std::set<std::string> lines;
  for (const std::string& rank : t.control().texts(speaks ? t.fp8()->state(t.compute()) : "")) {
    std::istringstream text(rank);
    for (std::string line; std::getline(text, line);) lines.insert(line + "\n");
  }
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
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
  const WholeModel model(t);
  write_state(
      t, model, file(kModel),
      {{"", [&](ParamUnit& unit) { return as_fp32(t.compute(), whole_master(dp, unit)); }}});
  write_state(t, model, file(kOptimizer),
              {{".m", moment(&AdamW::Moments::m)}, {".v", moment(&AdamW::Moments::v)}});
  const std::string float8 = float8_state(t);
  fs::path committed;
  rank_0_while_others_wait(t.control(), [&] {
    TrainState state;
    state.set("step", t.steps_done());
    state.set("ranks", t.world().size());
    save_bf16_arithmetic(t.device(), recipe, state);
    if (!float8.empty()) state.set(kFloat8Scales, float8);
    state.save(writer->folder() / kState);
    write_file_atomic(writer->folder() / kRecipe, print_recipe(recipe));
    writer->set_step_hook(on_commit);
    committed = writer->commit();
  });
  return committed;
}

Recipe load_saved_recipe(const fs::path& folder) {
  Problems problems;
  // It was fit for the ranks that saved it, whatever their number.
  Recipe recipe = load_recipe((folder / kRecipe).string(), {}, problems, 0);
  problems.throw_if_errors();
  return recipe;
}

namespace {
void load_weights(Stream& on, ParamStore& params, const fs::path& folder, ParamStore& whole) {
  const SafetensorsReader model(folder / kModel);
  std::set<std::string> used;
  for (Parameter* p : whole.params()) used.insert(p->name);
  refuse_surplus(model, used);
  for (Parameter* p : params.params())
    params.set_master(on, *p, read_floats(model, p->name, p->whole_shape()));
}
}  // namespace

void load_weights(Stream& on, ParamStore& params, const fs::path& folder) {
  load_weights(on, params, folder, params);
}

void load_snapshot(Trainer& t, const Recipe& recipe, const fs::path& folder) {
  refuse_other_recipe(recipe, folder);
  const TrainState state = TrainState::load(folder / kState);
  const auto whole = t.declare_whole();
  t.change_weights([&] { load_weights(t.compute(), t.params(), folder, *whole); });
  const SafetensorsReader moments(folder / kOptimizer);
  std::set<std::string> used;
  for (Parameter* p : whole->params()) {
    used.insert(p->name + ".m");
    used.insert(p->name + ".v");
  }
  refuse_surplus(moments, used);
  for (Parameter* p : t.params().params()) {
    const AdamW::Moments& own = t.optimizer().moments(*p->unit);
    set_moment(t.compute(), *p, own.m, read_floats(moments, p->name + ".m", p->whole_shape()));
    set_moment(t.compute(), *p, own.v, read_floats(moments, p->name + ".v", p->whole_shape()));
  }
  restore_bf16_arithmetic(t.device(), t.control(), recipe, state);
  if (t.fp8() && state.contains(kFloat8Scales))
    t.fp8()->restore(t.compute(), state.text(kFloat8Scales));
  t.set_steps_done(state.integer("step"));
}

}  // namespace mtrain
