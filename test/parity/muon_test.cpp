// Muon: its updates are those of torch.optim.Muon, every layout trains as a single rank does, and
// checkpoints resume under another layout. Runs under the stream sanitizer.
#include <nlohmann/json.hpp>

#include "ops/elementwise.h"
#include "optim/muon.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/temporary_folder.h"
#include "train_experts_testing.h"

namespace parity_muon_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct Ranks {
  const char* name;
  int ranks;
  Changes changes;
};
const std::vector<Ranks> kDense{
    {"ddp", 2, {"distributed.strategy=ddp"}},
    {"megatron_ddp", 4, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {"megatron_ddp, whole optimizer",
     2,
     {"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"}},
    {"megatron_fsdp 1",
     2,
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"}},
    {"megatron_fsdp 2",
     3,
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}},
    {"megatron_fsdp 3",
     4,
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3",
      "ddp.bucket_size=3000"}},
    {"fsdp2", 3, {"distributed.strategy=fsdp2"}},
    {"hsdp", 4, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}},
    {"tp 2", 2, {"distributed.tp_size=2"}},
    {"tp 4 with copied kv heads, sequence parallelism",
     4,
     {"distributed.tp_size=4", "distributed.sequence_parallel=true"}},
    {"tp 2, fsdp2", 4, {"distributed.tp_size=2", "distributed.strategy=fsdp2"}},
    {"pp 2",
     2,
     {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}"}},
    {"cp 2", 2, {"distributed.cp_size=2"}},
    {"cp 2, fsdp2", 4, {"distributed.cp_size=2", "distributed.strategy=fsdp2"}}};

const Changes kMuon{"optimizer.name=muon", "train.global_batch_size=12",
                    "train.micro_batch_size=1"};
constexpr int64_t kFewSteps = 8;

// A matrix, and the weights that torch.optim.Muon makes of it.
struct Golden {
  Golden() : file(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/optim/muon.safetensors") {
    cases = nlohmann::json::parse(file.metadata().at("cases"));
  }
  std::vector<float> values(const std::string& name) const {
    std::vector<float> v(size_t(file.shape(name).count()));
    file.read(name, 0, int64_t(v.size()), v.data());
    return v;
  }
  storage::SafetensorsReader file;
  nlohmann::json cases;
};

double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double(a[i]) - b[i], 2);
  return std::sqrt(squares / double(a.size()));
}

plan::OptimizerOptions options_of(const nlohmann::json& c, bool bf16) {
  plan::OptimizerOptions o{.weight_decay = c.at("weight_decay")};
  const std::string scale = c.at("adjust_lr_fn");
  o.muon = {.on = true,
            .momentum = c.at("momentum"),
            .nesterov = c.at("nesterov"),
            .ns_steps = c.at("ns_steps"),
            .coefficients = c.at("ns_coefficients"),
            .eps = c.at("eps"),
            .scale = scale == "original"          ? plan::MuonOptions::Scale::original
                     : scale == "match_rms_adamw" ? plan::MuonOptions::Scale::match_rms_adamw
                                                  : plan::MuonOptions::Scale::unit_rms_norm,
            .bf16 = bf16};
  return o;
}

}  // namespace

TEST_CASE("Muon's updates are those of torch.optim.Muon, in fp32 and in bf16") {
  const Golden golden;
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  comm::World world = comm::World::alone();
  for (const nlohmann::json& c : golden.cases)
    for (const bool bf16 : {false, true}) {
      const std::string name = c.at("name");
      CAPTURE(name, bf16);
      model::ParamStore params;
      model::Parameter* p = params.add({model::UnitKind::layer, 0},
                                       {.name = "w", .shape = {c["shape"][0], c["shape"][1]}});
      params.materialize(stream, DType::f32, true);
      optim::Muon muon(stream, params, options_of(c, bf16), 1, {world.world_group(), stream, {}});
      model::ParamStore::set_master(stream, *p, golden.values(name + ".start"));
      const Tensor scale = Tensor::from_host<float>(stream, {1}, {0.5f});
      for (int k = 0; k < 3; ++k) {
        auto grad = golden.values(fmt::format("{}.grad.{}", name, k));
        for (float& g : grad) g *= 2;  // clipping halves it
        ops::cast(stream, Tensor::from_host<float>(stream, p->shape, std::move(grad)), p->grad);
        muon.step(stream, k + 1, c.at("lr"), scale, {});
        const auto got = p->value.to_host<float>(stream),
                   fp32 = golden.values(fmt::format("{}.fp32.{}", name, k)),
                   want = golden.values(fmt::format("{}.{}.{}", name, bf16 ? "bf16" : "fp32", k));
        // Elements of an update are below 2 and times the rate, at most 0.05. In bf16 both sides
        // round, at other places: ours must be as near to fp32 as torch's.
        const double bound = (bf16 ? 0x1p-4 : 1e-5) * double(c.at("lr")) * (k + 1);
        if (bf16) CHECK(rms_difference(got, fp32) <= 1.5 * rms_difference(want, fp32));
        for (size_t i = 0; i < want.size(); ++i)
          CHECK(std::abs(got[i] - want[i]) <= bound + 1e-6 * std::abs(want[i]));
      }
    }
}

TEST_CASE("Muon trains as a single rank does, under every strategy and layout") {
  const Result one = train_alone(kMuon, kFewSteps);
  CHECK(one.losses.back() < one.losses.front());
  CHECK(one.losses != train_alone(with(kMuon, {"optimizer.name=adamw"}), kFewSteps).losses);
  for (const Ranks& layout : kDense) {
    CAPTURE(layout.name);
    for (const Result& r : train_ranks(layout.ranks, with(kMuon, layout.changes), kFewSteps))
      check_close(one.losses, r.losses, 1e-5);
  }
}

TEST_CASE("blockwise Muon updates the part that a rank has as if it were a weight, bit for bit") {
  using Dim = model::ShardSpec::Dim;
  const plan::OptimizerOptions options{.muon = {.on = true, .per_shard = true}};
  for (const Dim dim : {Dim::rows, Dim::columns}) {
    CAPTURE(int(dim));
    const Shape part = dim == Dim::rows ? Shape{6, 10} : Shape{12, 5};
    const auto updated = [&](TestRank& rank, const model::ShardSpec& shard, comm::World& world) {
      Stream& stream = rank.device.stream(device::StreamKind::compute);
      model::ParamStore params;
      model::Parameter* p =
          params.add({model::UnitKind::layer, 0}, {.name = "w", .shape = part, .shard = shard});
      params.materialize(stream, DType::f32, true);
      optim::Muon muon(stream, params, options, 1, {world.world_group(), stream, {}});
      std::vector<float> values(size_t(part.count())), grads(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = float(std::sin(double(i + 1)));
        grads[i] = float(std::cos(double(i * i + size_t(rank.rank()))));
      }
      ops::cast(stream, Tensor::from_host<float>(stream, part, values), p->value);
      ops::cast(stream, Tensor::from_host<float>(stream, part, grads), p->grad);
      muon.step(stream, 1, 0.1f, Tensor::from_host<float>(stream, {1}, {1.0f}), {});
      return p->value.to_host<float>(stream);
    };
    run_ranks(2, "thread", [&](TestRank& rank) {
      comm::World alone = comm::World::alone();
      const model::ShardSpec shard{
          .ranks = 2, .rank = rank.rank(), .dim = dim, .sections = {{.units = 12, .width = 1}}};
      CHECK((updated(rank, shard, rank.world) == updated(rank, {}, alone)));
    });
  }
}

TEST_CASE("blockwise Muon is one optimizer for each tp_size, under every strategy") {
  const Changes blockwise = with(kMuon, {"optimizer.muon.tp_mode=blockwise"}),
                tp_2 = with(blockwise, {"distributed.tp_size=2"});
  CHECK((train_alone(blockwise, 3).losses == train_alone(kMuon, 3).losses));
  const auto reference = train_ranks(2, tp_2, kFewSteps).front().losses;
  const auto gathered =
      train_ranks(2, with(kMuon, {"distributed.tp_size=2"}), kFewSteps).front().losses;
  CHECK(std::abs(reference.back() - gathered.back()) > 1e-4 * std::abs(gathered.back()));
  for (const Ranks& layout : std::vector<Ranks>{
           {"fsdp2", 4, {"distributed.strategy=fsdp2"}},
           {"megatron_ddp", 4, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
           {"pp 2",
            4,
            {"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
             "distributed.pipeline={}", "distributed.sequence_parallel=true"}}}) {
    CAPTURE(layout.name);
    for (const Result& r : train_ranks(layout.ranks, with(tp_2, layout.changes), kFewSteps))
      check_close(reference, r.losses, 1e-5);
  }
}

TEST_CASE("Muon takes each expert as a matrix of its own, wherever it is") {
  const Changes experts = with(kPlain, {"optimizer.name=muon", "train.micro_batch_size=1"});
  const Result one = train_alone(experts, kFewSteps);
  for (const Ranks& layout : std::vector<Ranks>{
           {"ep 2", 2, {"distributed.ep_size=2"}},
           {"ep 2, fsdp2", 4, {"distributed.ep_size=2", "distributed.strategy=fsdp2"}},
           {"ep 2, hsdp",
            4,
            {"distributed.ep_size=2", "distributed.strategy=fsdp2",
             "distributed.dp_replicate_size=2"}},
           {"experts divided by tp", 2, {"distributed.tp_size=2"}},
           {"whole experts beside tp 2", 2, with({"distributed.tp_size=2"}, kWhole)},
           {"ep 2, tp 2",
            4,
            {"distributed.ep_size=2", "distributed.tp_size=2",
             "distributed.sequence_parallel=true"}}}) {
    CAPTURE(layout.name);
    for (const Result& r : train_ranks(layout.ranks, with(experts, layout.changes), kFewSteps))
      check_close(one.losses, r.losses, 1e-5);
  }
}

TEST_CASE("a matrix is a weight as Hugging Face models have it, whatever a tensor stacks") {
  const auto device = Device::cpu(1, {});
  train::Trainer t = make_trainer(*device, tiny(with(kPlain, {"model.num_query_groups=1"})),
                                  std::make_shared<CountingData>());
  const auto rows = [&](const std::string& name) {
    std::vector<int64_t> all;
    for (const optim::Matrix& m : optim::matrices_of(*t.params().find(name))) all.push_back(m.rows);
    return all;
  };
  CHECK((rows("layers.0.attention.qkv.weight") == std::vector<int64_t>{48, 12, 12}));
  CHECK((rows("layers.0.attention.proj.weight") == std::vector<int64_t>{48}));
  CHECK((rows("layers.0.mlp.gate_up.weight") == std::vector<int64_t>{80, 80}));
  CHECK((rows("layers.1.mlp.experts.gate_up.weight") == std::vector<int64_t>(16, 40)));
  CHECK((rows("layers.1.mlp.experts.down.weight") == std::vector<int64_t>(8, 48)));
  const auto role = [&](const char* name) { return t.params().find(name)->role; };
  CHECK(role("layers.1.mlp.router.weight") == TensorRole::matrix);
  CHECK(role("layers.0.attention.norm.weight") == TensorRole::vector);
  CHECK(role("embedding.weight") == TensorRole::table);
  CHECK(role("output.weight") == TensorRole::table);
}

TEST_CASE("Muon in bf16 follows fp32") {
  const auto losses = [&](const Changes& more) {
    return train_alone(with(kMuon, more), kFewSteps).losses;
  };
  const auto fp32 = losses({});
  check_close(fp32, losses({"optimizer.muon.ns_dtype=bf16"}), 2e-2);
  check_close(fp32, losses({"mixed_precision=bf16_mixed"}), 2e-2);
}

TEST_CASE("a group that leaves out all matrices makes AdamW of Muon, bit for bit") {
  const auto adamw = train_alone(with(kMuon, {"optimizer.name=adamw"}), 4),
             group = train_alone(with(kMuon, {"optimizer.groups=[{match: ., name: adamw}]"}), 4);
  CHECK((adamw.losses == group.losses));
  CHECK((adamw.weights == group.weights));
}

TEST_CASE("Muon's momentum is saved, and resumed to the bit or by another layout") {
  const TemporaryFolder root;
  const auto losses_of = [](const Ranks& layout, int64_t steps, const std::filesystem::path& from,
                            const std::filesystem::path& to) {
    const Recipe r = tiny(with(kMuon, layout.changes), layout.ranks);
    std::vector<double> losses;
    run_ranks(layout.ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      if (!from.empty()) run::resume_run(t, from);
      std::vector<double> own;
      for (int64_t i = 0; i < steps; ++i) own.push_back(t.step().loss);
      if (!to.empty()) run::save_run(t, to);
      if (rank.rank() == 0) losses = own;
    });
    return losses;
  };
  const Ranks alone{"alone", 1, {}};
  const auto last = [](const std::vector<double>& all) {
    return std::vector<double>(all.end() - 3, all.end());
  };
  const auto reference = last(losses_of(alone, 6, {}, {}));
  for (const size_t i : {size_t{5}, size_t{9}, size_t{11}}) {  // fsdp, tp with copied heads, pp
    const Ranks& layout = kDense[i];
    CAPTURE(layout.name);
    const auto folder = root.path / std::to_string(i);
    losses_of(layout, 3, {}, folder);
    const auto saved = storage::find_latest(folder);
    REQUIRE(saved);
    CHECK((losses_of(layout, 3, saved->path, {}) == last(losses_of(layout, 6, {}, {}))));
    check_close(reference, losses_of(alone, 3, saved->path, {}), 1e-5);
    const auto file = open_checkpoint_tensors(saved->path, storage::TensorSet::optimizer);
    const auto has = [&](const std::string& name) { return file->contains(name); };
    CHECK(has("layers.0.attention.qkv.weight.momentum"));
    CHECK_FALSE(has("layers.0.attention.qkv.weight.m"));
    CHECK(has("embedding.weight.m"));
    CHECK(has("embedding.weight.v"));
    CHECK_FALSE(has("embedding.weight.momentum"));
  }
}

TEST_CASE("a checkpoint of another optimizer, or of other groups' matrices, is refused by name") {
  const TemporaryFolder root;
  struct Run {
    explicit Run(const Changes& changes)
        : device(Device::cpu(1, {.stream_sanitizer = true})),
          trainer(make_trainer(*device, tiny(with(kMuon, changes)),
                               std::make_shared<CountingData>())) {}
    std::unique_ptr<Device> device;
    train::Trainer trainer;
  };
  const auto saved = [&](const char* name, const Changes& changes) {
    Run run(changes);
    run.trainer.step();
    return run::save_run(run.trainer, root.path / name);
  };
  const auto expect_refused = [&](const std::filesystem::path& folder, const Changes& changes,
                                  const char* gist) {
    Run run(changes);
    CHECK_THROWS_WITH(run::resume_run(run.trainer, folder), Catch::Contains(gist));
  };
  const Changes adamw{"optimizer.name=adamw"},
      down{"optimizer.groups=[{match: down, name: adamw}]"};
  const auto of_muon = saved("muon", {}), of_adamw = saved("adamw", adamw),
             of_down = saved("down", down);
  expect_refused(of_muon, adamw, "optimizer.name: saved with muon, now adamw");
  expect_refused(of_adamw, {}, "optimizer.name: saved with adamw, now muon");
  expect_refused(of_muon, down, "layers.0.mlp.down.weight.momentum");
  expect_refused(of_down, {}, "layers.0.mlp.down.weight.m");
  Run slower({"optimizer.groups=[{match: down, lr_scale: 0.5}]"});
  run::resume_run(slower.trainer, of_muon);
  CHECK(std::isfinite(slower.trainer.step().loss));
}

}  // namespace parity_muon_test
