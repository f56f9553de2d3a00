// A training that begins with the weights of another source is the same under every layout, and
// each rank reads only what it owns. Runs under the stream sanitizer.
#include <limits>
#include <mutex>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/read_weights.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/temporary_folder.h"
#include "train_ranks.h"

namespace parity_weights_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

// Attention with grouped queries, a dense layer, and layers of experts whose router has biases.
const Changes kModel{"model.num_layers=4",
                     "model.moe.num_experts=4",
                     "model.moe.router_topk=2",
                     "model.moe.ffn_hidden_size=40",
                     "model.moe.first_dense_layers=1",
                     "model.moe.router_score=sigmoid",
                     "model.moe.router_bias_update_rate=0.02",
                     "model.moe.load_balancing_type=aux_loss",
                     "model.moe.aux_loss_coeff=0.01",
                     "train.global_batch_size=8",
                     "train.micro_batch_size=1"};

// Trains a single rank for some steps, saves it, and returns the file of its weights.
fs::path saved_weights(const fs::path& root, const Changes& changes, int64_t steps) {
  const auto device = Device::cpu(1);
  train::Trainer t =
      make_trainer(*device, tiny(changes), std::make_shared<CountingData>(), comm::World::alone());
  for (int64_t i = 0; i < steps; ++i) t.step();
  const fs::path saved = run::save_run(t, root);
  make_format_1(saved, steps);
  return saved / "model.safetensors";
}

struct Started {
  std::vector<double> losses;  // four steps, from rank 0
  double max_read = 0;         // bytes that a rank has read, over the bytes that it owns
};

// Starts a training from the weights in `file`.
Started start(const fs::path& file, const Changes& changes, int ranks) {
  Started result;
  std::mutex mutex;
  const Recipe r = tiny(changes, ranks);
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    const storage::SafetensorsReader source(file);  // each rank counts what it reads
    checkpoint::start_from(t.checkpoint_parts(), source);
    int64_t owned = 0;
    for (const model::Parameter* p : t.params().params())
      for (const model::OwnedPart& part : owned_parts(*p)) owned += part.count * 4;
    for (const checkpoint::ReplicatedTensor& tensor : t.checkpoint_parts().replicated)
      owned += tensor.value.bytes();
    CHECK(t.steps_done() == 0);
    std::vector<double> losses;
    for (int i = 0; i < 4; ++i) losses.push_back(t.step().loss);
    const std::lock_guard lock(mutex);
    result.max_read = std::max(result.max_read, double(source.bytes_read()) / double(owned));
    if (rank.rank() == 0) result.losses = losses;
  });
  return result;
}

// Writes the tensors of `from` again, changed by `change`.
void rewrite(const fs::path& from, const fs::path& to, DType dtype,
             const std::function<void(const std::string&, std::vector<float>&)>& change) {
  const storage::SafetensorsReader source(from);
  std::vector<storage::TensorInfo> infos;
  for (const auto& t : source.tensors()) infos.push_back({t.name, dtype, source.shape(t.name)});
  storage::SafetensorsWriter writer(to, infos);
  for (const auto& t : source.tensors()) {
    std::vector<float> values(size_t(t.count()));
    source.read(t.name, 0, t.count(), values.data());
    change(t.name, values);
    with_float(dtype, [&]<class T>() {
      const std::vector<T> typed(values.begin(), values.end());
      writer.write(t.name, {typed.data(), t.count(), dtype});
    });
  }
  writer.commit();
}

const Changes kFsdp{"distributed.strategy=fsdp2"};

}  // namespace

TEST_CASE("a start from weights is the run whose first weights they are") {
  const TemporaryFolder root;
  const fs::path initial = saved_weights(root / "initial", kModel, 0);
  const Changes other = with(kModel, {"train.seed=99"});
  CHECK(start(initial, other, 1).losses != train_alone(other, 4).losses);
  // With the same seed they are the weights that the run would begin with: the same bits.
  CHECK(start(initial, kModel, 1).losses == train_alone(kModel, 4).losses);
  CHECK(start(initial, with(kModel, {"mixed_precision.name=bf16_mixed"}), 1).losses ==
        train_alone(with(kModel, {"mixed_precision.name=bf16_mixed"}), 4).losses);
}

TEST_CASE("every layout starts from the same weights, and each rank reads only what it owns") {
  const TemporaryFolder root;
  const fs::path trained = saved_weights(root.path, kModel, 6);
  const Started alone = start(trained, kModel, 1);
  CHECK(alone.losses[0] < train_alone(kModel, 1).losses[0]);  // it has learned something
  struct Row {
    const char* name;
    int ranks;
    Changes changes;
  };
  for (const Row& row : std::vector<Row>{
           {"tp 2", 2, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
           {"tp 4", 4, {"distributed.strategy=megatron_ddp", "distributed.tp_size=4"}},
           {"pp 2",
            2,
            {"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
             "distributed.pipeline={}"}},
           {"ep 2", 2, {"distributed.strategy=megatron_ddp", "distributed.ep_size=2"}},
           {"fsdp2 4", 4, kFsdp},
           {"fsdp2 2, ep 2", 4, with(kFsdp, {"distributed.ep_size=2"})},
           {"fsdp2 2, tp 2", 4, with(kFsdp, {"distributed.tp_size=2"})},
           {"megatron_fsdp 3",
            2,
            {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"}}}) {
    CAPTURE(row.name);
    const Started started = start(trained, with(kModel, row.changes), row.ranks);
    check_close(alone.losses, started.losses, 1e-5);
    CHECK(started.max_read <= 1.0);
    CHECK(started.max_read > 0.99);
  }
}

TEST_CASE("weights of 16 bits start a training as their values in fp32 do") {
  const TemporaryFolder root;
  const fs::path trained = saved_weights(root.path, kModel, 2);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto round = [&](const std::string&, std::vector<float>& values) {
      for (float& v : values) v = dtype == DType::bf16 ? float(bf16(v)) : float(f16(v));
    };
    rewrite(trained, root / "16.safetensors", dtype, round);
    rewrite(trained, root / "32.safetensors", DType::f32, round);
    CHECK(start(root / "16.safetensors", kModel, 1).losses ==
          start(root / "32.safetensors", kModel, 1).losses);
  }
}

TEST_CASE("a checkpoint whose weights another program has rounded is not resumed") {
  const TemporaryFolder root;
  const fs::path trained = saved_weights(root.path, kModel, 2);
  fs::rename(trained, root / "saved.safetensors");
  rewrite(root / "saved.safetensors", trained, DType::bf16, [](const auto&, auto&) {});
  const auto device = Device::cpu(1);
  train::Trainer t =
      make_trainer(*device, tiny(kModel), std::make_shared<CountingData>(), comm::World::alone());
  const fs::path folder = trained.parent_path();
  CHECK_THROWS_WITH(run::resume_run(t, folder),
                    Contains(trained.string()) && Contains("is damaged"));
  // Folders of earlier versions have no checksums; the types of their tensors show the change.
  nlohmann::json files = nlohmann::json::object();
  std::vector<fs::directory_entry> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry);
  for (const fs::directory_entry& entry : entries)
    if (const fs::path name = entry.path().filename(); name.extension() == ".sums")
      fs::remove(entry.path());
    else if (name != "manifest.json")
      files[name.string()] = entry.file_size();
  write_file_atomic(folder / "manifest.json",
                    nlohmann::json{{"format", 1}, {"step", 2}, {"files", files}}.dump());
  CHECK_THROWS_WITH(
      run::resume_run(t, folder),
      Contains(trained.string()) && Contains("is BF16, a type that mtrain does not save there"));
}

TEST_CASE("weights that are not finite, absent or of another shape are refused by name") {
  const TemporaryFolder root;
  const fs::path trained = saved_weights(root.path, kModel, 0), bad = root / "bad.safetensors";
  const std::string name = "layers.2.attention.qkv.weight";
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    rewrite(trained, bad, DType::f32, [&](const std::string& tensor, std::vector<float>& values) {
      if (tensor == name) values.at(1234) = value;
    });
    const std::string gist =
        fmt::format("{}: tensor `{}` has {} as element 1234", bad.string(), name, value);
    CHECK_THROWS_WITH(start(bad, kModel, 1), Contains(gist));
    CHECK_THROWS_AS(start(bad, kModel, 1), UserError);
    // The rank that has the element reports it, under any layout.
    CHECK_THROWS_WITH(start(bad, with(kModel, kFsdp), 4), Contains(gist));
  }
  CHECK_THROWS_WITH(start(trained, with(kModel, {"model.ffn_hidden_size=96"}), 1),
                    Contains("layers.0.mlp.") && Contains("but the recipe's model has"));
  CHECK_THROWS_WITH(start(trained, with(kModel, {"model.num_layers=5"}), 1),
                    Contains("has no tensor `layers.4."));
}

TEST_CASE("biases of routers that the weights lack begin at zero") {
  const TemporaryFolder root;
  const fs::path trained = saved_weights(root.path, kModel, 6), less = root / "less.safetensors",
                 zero = root / "zero.safetensors";
  const storage::SafetensorsReader source(trained);
  const auto is_bias = [](const std::string& name) { return name.ends_with("router.bias"); };
  std::vector<storage::TensorInfo> infos;
  for (const auto& t : source.tensors())
    if (!is_bias(t.name)) infos.push_back({t.name, DType::f32, source.shape(t.name)});
  CHECK(infos.size() + 3 == source.tensors().size());
  storage::SafetensorsWriter writer(less, infos);
  for (const storage::TensorInfo& t : infos) {
    std::vector<float> values(size_t(t.shape.count()));
    source.read(t.name, 0, t.shape.count(), values.data());
    writer.write(t.name, {values.data(), t.shape.count(), DType::f32});
  }
  writer.commit();
  rewrite(trained, zero, DType::f32, [&](const std::string& name, std::vector<float>& values) {
    if (is_bias(name)) std::ranges::fill(values, 0.0f);
  });
  const auto losses = start(less, kModel, 1).losses;
  CHECK(losses == start(zero, kModel, 1).losses);
  CHECK(losses != start(trained, kModel, 1).losses);
}

}  // namespace parity_weights_test
