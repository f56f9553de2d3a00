// Trainings that are saved by all ranks under one layout, and read under another.
#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include <catch2/catch.hpp>

#include "checkpoint/ranks_together.h"
#include "checkpoint/shard_writer.h"
#include "test/support/saved_training.h"
#include "test/support/temporary_folder.h"

namespace checkpoint_shards_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const Changes kPipelined{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"},
    kReplicated{"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"},
    kReplicas{"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"},
    kTied{"model.share_embeddings_and_output_weights=true"},
    kBf16{"mixed_precision.name=bf16_mixed"}, kFourLayers{"model.num_layers=4"};
constexpr const char* kBatch = "train.global_batch_size=";

bool sets(const Changes& changes, const std::string& begin) {
  return std::ranges::any_of(changes, [&](const auto& c) { return c.starts_with(begin); });
}

}  // namespace

TEST_CASE("a checkpoint is loaded and saved again bit for bit under any other layout") {
  struct Row {
    Changes model;
    std::vector<SavedLayout> layouts;  // each is read by the next one
  };
  const TemporaryFolder root;
  int number = 0, compared = 0;
  for (const Row& row : std::vector<Row>{
           {{},
            {{"one", 1, {}},
             {"ddp", 4, kReplicated},
             {"zero 1", 3, {"distributed.strategy=megatron_ddp"}},
             {"zero 2",
              2,
              {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}},
             {"fsdp", 4, kFsdp2},
             {"hsdp", 4, kReplicas},
             {"tp with copied heads", 4, {"distributed.tp_size=4"}},
             {"vpp",
              2,
              {"distributed.pp_size=2", "distributed.vpp_size=2",
               "distributed.pipeline.pp_schedule=interleaved_1f1b"}},
             {"tp and fsdp", 4, with(kFsdp2, {"distributed.tp_size=2"})},
             {"cp", 4, with(kFsdp2, {"distributed.cp_size=2"})}}},
           {kTied,
            {{"pp", 2, kPipelined},
             {"one", 1, {}},
             {"pp and fsdp", 4, with(kPipelined, kFsdp2)},
             {"pp and ddp", 4, with(kPipelined, kReplicated)}}},
           {with(kBf16, {"optimizer.master_weights=false"}),
            {{"fsdp without masters", 2, kFsdp2},
             {"ddp without masters", 2, kReplicated},
             {"tp without masters", 2, {"distributed.tp_size=2"}}}},
           {with(kBf16, {"mixed_precision.fp8=hybrid", "debug.emulate_fp8=true"}),
            {{"fp8 under fsdp", 2, kFsdp2}, {"fp8 alone", 1, {}}}},
           {{"optimizer.name=muon"},
            {{"muon under fsdp", 2, kFsdp2}, {"muon under tp", 2, {"distributed.tp_size=2"}}}},
           {kSavedExperts,
            {{"ep and hsdp", 4, with(kReplicas, {"distributed.ep_size=2"})},
             {"ep and tp",
              4,
              {"distributed.ep_size=2", "distributed.tp_size=2",
               "distributed.sequence_parallel=true"}},
             {"ep and full experts", 4,
              with(kReplicated,
                   {"distributed.ep_size=2", "distributed.tp_size=2",
                    "distributed.sequence_parallel=true", "distributed.expert_tp_size=1"})}}},
           {{},
            {{"fsdp of 24", 2, kFsdp2},
             {"ddp of 36", 3, with(kReplicated, {"train.global_batch_size=36"})}}}}) {
    for (size_t i = 0; i < row.layouts.size(); ++i) {
      const SavedLayout &own = row.layouts[i], &other = row.layouts[(i + 1) % row.layouts.size()];
      CAPTURE(own.name, other.name);
      const fs::path first = root / std::to_string(number),
                     again = root / ("a" + std::to_string(number));
      ++number;
      const Changes model = with(kFourLayers, row.model);
      train_and_save(model, own, 2, {}, first);
      train_and_save(model, other, 0, saved_in(first), again);
      CHECK(same_training(saved_in(first), saved_in(again)));
      const auto straight = train_and_save(model, own, 3, {}, {});
      CHECK(train_and_save(model, own, 1, saved_in(first), {})[0] == straight[2]);
      // In fp32 and with the same batch, layouts differ in the order of their sums alone.
      if (sets(row.model, "mixed_precision.") || sets(own.changes, kBatch) ||
          sets(other.changes, kBatch))
        continue;
      CHECK(train_and_save(model, other, 1, saved_in(first), {})[0] ==
            Approx(straight[2]).epsilon(1e-5));
      ++compared;
    }
  }
  CHECK(number >= 24);
  CHECK(compared >= 16);
}

TEST_CASE("eight ranks with the same elements write the bytes of one, in equal parts") {
  const TemporaryFolder root;
  train_and_save(kFourLayers, {"one", 1, {}}, 1, {}, root / "one");
  train_and_save(kFourLayers, {"ddp", 8, kReplicated}, 1, {}, root / "eight");
  const auto data_bytes = [](const fs::path& checkpoint) {
    std::map<std::string, int64_t> bytes;  // of tensors, by the end of the file's name
    for (const auto& entry : fs::directory_iterator(checkpoint))
      if (entry.path().extension() == ".safetensors") {
        const std::string name = entry.path().filename().string();
        const storage::SafetensorsReader file(entry.path());
        for (const storage::StoredTensor& t : file.tensors())
          bytes[name.substr(name.find('-'))] += t.bytes;
      }
    return bytes;
  };
  const auto one = data_bytes(saved_in(root / "one")), eight = data_bytes(saved_in(root / "eight"));
  REQUIRE(one.size() == 1);
  REQUIRE(eight.size() == 8);
  int64_t total = 0, most = 0;
  for (const auto& [rank, bytes] : eight) total += bytes, most = std::max(most, bytes);
  CHECK(total == one.begin()->second);
  CHECK(double(most) <= 1.1 * double(total) / 8);
}

TEST_CASE("an error of one rank reaches all ranks as one error that names it") {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(4, "thread", [&](TestRank& rank) {
    const comm::HostCollectives control(rank.world, rank.device);
    int together = 0;
    checkpoint::all_together(control, [&](checkpoint::Meetings&) { ++together; });
    try {
      checkpoint::all_together(control, [&](checkpoint::Meetings& meetings) {
        meetings.run([&] {
          if (rank.rank() == 2)
            throw RunError("cannot write weights-00002.safetensors", "free some");
        });
      });
    } catch (const checkpoint::SaveError& e) {
      const std::lock_guard lock(mutex);
      errors.push_back(std::string(together == 1 ? "" : "not together: ") + e.what());
    }
  });
  REQUIRE(errors.size() == 4);
  for (const std::string& e : errors)
    CHECK(e == "rank 2: cannot write weights-00002.safetensors\n  hint: free some");
}

TEST_CASE("a rank that cannot write its file leaves no checkpoint, and all ranks name the file") {
  const TemporaryFolder root;
  const Recipe r = tiny(with({"train.global_batch_size=8", "train.micro_batch_size=1"}, kFsdp2), 2);
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    run::save_run(t, root / "sound");
    // A folder has the name of rank 1's second file.
    checkpoint::CheckpointParts parts = t.checkpoint_parts();
    parts.progress = [&](std::string_view, int64_t, int64_t) {
      if (rank.rank() != 1) return;
      for (const auto& entry : fs::directory_iterator(root / "bad"))
        fs::create_directories(entry.path() / "optimizer-00001.safetensors" / "x");
    };
    try {
      checkpoint::save_checkpoint(parts, t.progress(), {.root = root / "bad"});
    } catch (const checkpoint::SaveError& e) {
      const std::lock_guard lock(mutex);
      errors.emplace_back(e.what());
    }
  });
  REQUIRE(errors.size() == 2);
  for (const std::string& e : errors)
    CHECK_THAT(e, Catch::StartsWith("rank 1: ") && Contains("optimizer-00001.safetensors"));
  CHECK_FALSE(storage::find_latest(root / "bad"));
  CHECK(fs::is_empty(root / "bad"));
  CHECK(storage::find_latest(root / "sound"));
}

TEST_CASE("a save of experts over eight ranks moves no tensor between ranks") {
  const TemporaryFolder root;
  const Recipe r = tiny(with({"train.global_batch_size=8", "train.micro_batch_size=1"},
                             with(kSavedExperts, with(kFsdp2, {"distributed.ep_size=4"}))),
                        8);
  std::mutex mutex;
  std::map<std::string, int> calls;  // of all ranks, by stream and operation
  run_ranks(8, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    rank.device.synchronize();
    rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
      const std::lock_guard lock(mutex);
      if (stream.id().kind != device::StreamKind::compute)
        ++calls[device::stream_name(stream.id()) + " " + info.name];
    });
    run::save_run(t, root.path);
    rank.device.set_launch_check({});
  });
  // Numbers and texts of the host alone: sizes of files, errors, what rank 0 lists.
  int most = 0;
  for (const auto& [call, n] : calls) {
    CAPTURE(call, n);
    CHECK(call.starts_with("control "));
    most = std::max(most, n);
  }
  CHECK(calls.at("control all_to_all") == 8);
  CHECK(most < 8 * 100);
  CHECK(storage::find_latest(root.path));
}

TEST_CASE("the text of a rank's files has all that rank 0 needs") {
  checkpoint::WrittenShard shard{
      .name = "weights-00003.safetensors", .bytes = 12, .sums_hash = "ab"};
  shard.index.files = {shard.name};
  shard.index.weights["x"] = {DType::bf16, Shape{2, 3}, {{0, {1, 2}}, {0, {0, 1, 2, 3}}}};
  shard.index.optimizer["x.m"] = {DType::f32, Shape{6}, {{0, {0, 6}}}};
  const auto again = checkpoint::parse_shards(checkpoint::shards_text({shard, shard}));
  REQUIRE(again.size() == 2);
  for (const checkpoint::WrittenShard& s : again) {
    CHECK(s.name == shard.name);
    CHECK(s.bytes == 12);
    CHECK(s.sums_hash == "ab");
    const storage::PiecedTensor& x = s.index.weights.at("x");
    CHECK(x.dtype == DType::bf16);
    CHECK(x.shape == Shape{2, 3});
    REQUIRE(x.pieces.size() == 2);
    CHECK(x.pieces[1].run == StridedRun{0, 1, 2, 3});
    CHECK(s.index.optimizer.at("x.m").shape == Shape{6});
  }
  CHECK(checkpoint::parse_shards(checkpoint::shards_text({})).empty());
}

}  // namespace checkpoint_shards_test
