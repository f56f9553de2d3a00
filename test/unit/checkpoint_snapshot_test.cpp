// Copies of a training in host memory, from which checkpoints are written while it continues.
#include <atomic>
#include <mutex>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/snapshot.h"
#include "test/support/saved_training.h"
#include "test/support/temporary_folder.h"

namespace checkpoint_snapshot_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const Changes kBf16{"mixed_precision.name=bf16_mixed"},
    kExperts =
        with(kSavedExperts,
             {"model.moe.load_balancing_type=global_aux_loss", "model.moe.aux_loss_coeff=0.01",
              "model.moe.router_bias_update_rate=0.01", "model.moe.router_score=sigmoid"});

std::vector<SavedLayout> layouts() {
  return {{"one", 1, {}},
          {"without masters", 1, with(kBf16, {"optimizer.master_weights=false"})},
          {"experts", 1, kExperts},
          {"ddp", 2, {"distributed.strategy=megatron_ddp"}},
          {"bf16 under ddp", 2, with(kBf16, {"distributed.strategy=megatron_ddp"})},
          {"fsdp", 2, with(kFsdp2, kBf16)},
          {"pp", 2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
          {"tp", 2, {"distributed.tp_size=2"}},
          {"muon", 2, with(kFsdp2, {"optimizer.name=muon"})},
          {"experts over ep", 2, with(kExperts, {"distributed.ep_size=2"})}};
}

Recipe recipe(const SavedLayout& l) {
  return tiny(with({"train.global_batch_size=8", "train.micro_batch_size=1", "train.steps=6",
                    "checkpoint.keep=0"},
                   l.changes),
              l.ranks);
}

// Makes six steps. If `copies` is not empty, copies the training after the second and the fourth,
// and writes each copy there two steps later. If `saves` is not empty, saves there at once.
std::vector<double> losses_of(const SavedLayout& l, const fs::path& copies, const fs::path& saves) {
  const Recipe r = recipe(l);
  std::vector<double> losses;
  run_ranks(l.ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    checkpoint::Snapshot snapshot(rank.device);
    for (int step = 1; step <= 6; ++step) {
      const double loss = t.step(step % 2 == 1).loss;
      if (rank.rank() == 0) losses.push_back(loss);
      if (step % 2 == 1) continue;
      if (!saves.empty()) run::save_run(t, saves);
      if (copies.empty()) continue;
      if (step > 2) {
        const fs::path folder = copies / std::to_string(step - 2);
        fs::create_directories(folder);
        write_shards(snapshot, rank.rank(), folder, /*io_threads=*/1, {});
      }
      const checkpoint::CheckpointParts parts = t.checkpoint_parts();
      const int64_t before = snapshot.allocated();
      t.hold_updates_until(snapshot.stage(parts));
      CHECK(snapshot.bytes() == shard_bytes(parts));
      if (before > 0) CHECK(snapshot.allocated() == before);
    }
  });
  return losses;
}

}  // namespace

TEST_CASE("a copy has the bits of its step, and the steps after it their results") {
  for (const SavedLayout& l : layouts()) {
    CAPTURE(l.name);
    const TemporaryFolder root;
    const std::vector<double> plain = losses_of(l, {}, {});
    CHECK(losses_of(l, root / "copies", {}) == plain);
    losses_of(l, {}, root / "saves");
    int files = 0;
    for (const int step : {2, 4})
      for (const auto& entry : fs::directory_iterator(root / "copies" / std::to_string(step))) {
        const fs::path saved = root / "saves" / storage::step_name(step) / entry.path().filename();
        INFO(saved);
        REQUIRE(fs::exists(saved));
        CHECK(read_file(entry.path()) == read_file(saved));
        files += entry.path().extension() == ".safetensors";
      }
    CHECK(files >= 4);
  }
}

TEST_CASE("an update that does not wait for a copy is found by the sanitizer") {
  for (const bool holds : {true, false}) {
    CAPTURE(holds);
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t = make_trainer(*device, tiny(kExperts), std::make_shared<CountingData>());
    t.step();
    checkpoint::Snapshot snapshot(*device);
    const Event copied = snapshot.stage(t.checkpoint_parts());
    if (holds) t.hold_updates_until(copied);
    if (holds)
      CHECK_NOTHROW(t.step());
    else
      CHECK_THROWS_WITH(t.step(), Contains("download") && Contains("copy"));
  }
}

TEST_CASE("weights that are set outside of a step wait for a copy") {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  train::Trainer t = make_trainer(*device, tiny(), std::make_shared<CountingData>());
  checkpoint::Snapshot snapshot(*device);
  t.hold_updates_until(snapshot.stage(t.checkpoint_parts()));
  CHECK_NOTHROW(t.change_weights([&] { t.params().initialize(t.compute(), 7); }));
}

}  // namespace checkpoint_snapshot_test
